"""Recorded cases of Kueue and KAI, decided by the engine's own cycle and division."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from portal.quota.limits.shares import QueueClaim, divide
from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.model import Policy, PreemptionCode, Running, Snapshot, Workload
from portal.scheduling.engine.scheduler import schedule

GOLDEN = Path(__file__).parent / "golden"
KUEUE = json.loads((GOLDEN / "kueue_fair_preemption_cases.json").read_text())
KAI = list(csv.DictReader((GOLDEN / "kai_resource_division_two_queues.csv").read_text().splitlines()))
REASONS = {
    "InClusterQueueReason": PreemptionCode.IN_TEAM,
    "InCohortReclamationReason": PreemptionCode.RECLAIM,
    "InCohortFairSharingReason": PreemptionCode.FAIR_SHARE,
}


def milli(text: str) -> int:
    return round(float(text) * 1000)


@pytest.mark.parametrize("case", KUEUE["cases"], ids=lambda case: case["name"])
def test_fair_preemption_equals_recorded_kueue_decisions(case):
    teams = tuple(
        Team(name, KUEUE["base_cohort"], {"cpu_milli": Limit(cpu * 1000)}, reclaim=name != "preemptible")
        for name, cpu in KUEUE["base_nominal_cpu"].items()
    )
    running = tuple(
        Running(
            Workload(
                each["name"], each["cq"], {"cpu_milli": milli(each["request_cpu"])}, priority=each["priority"]
            ),
            started_s=0,
        )
        for each in case["admitted"]
    )
    incoming = Workload(
        case["incoming"]["name"],
        case["targetCQ"],
        {"cpu_milli": milli(case["incoming"]["request_cpu"])},
        priority=case["incoming"]["priority"],
    )
    cycle = schedule(Snapshot(0, teams, (Cohort("all"),), running, (incoming,), policy=Policy(min_run_s=0)))
    assert cycle.starts == ()
    assert {(victim.workload, victim.reason) for victim in cycle.victims} == {
        (name, REASONS[reason]) for name, reason in case["wantPreempted"]
    }


@pytest.mark.parametrize("case", KAI, ids=lambda case: case["case"])
@pytest.mark.parametrize("unit", [1, 1000])
def test_fair_division_equals_recorded_kai_results(case, unit):
    claims = {
        f"q{number}": QueueClaim(
            deserved=int(case[f"q{number}_deserved"]) * unit,
            request=int(case[f"q{number}_request"]) * unit,
            weight=int(case[f"q{number}_weight"]),
            limit=None if int(case[f"q{number}_max"]) < 0 else int(case[f"q{number}_max"]) * unit,
            priority=int(case[f"q{number}_prio"]),
        )
        for number in (1, 2)
    }
    shares = divide(int(case["total_gpus"]) * unit, claims, unit=unit)
    assert shares == {"q1": int(case["exp_q1"]) * unit, "q2": int(case["exp_q2"]) * unit}
    assert int(case["total_gpus"]) * unit - sum(shares.values()) == int(case["exp_remaining"]) * unit
