"""Compare previews with later requests: `python -m bench.scheduling.previews [--worlds N] [--seed S]`.

Small sites with random limits run for a while under the engine. Some requests list a second flavor. Each
request is previewed and then created, and outcome, position, expected start, reason and victims are compared.
Exits with 1 if any of them differ.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from random import Random

from portal.quota.limits.types import Cohort, Fungibility, Limit, Team
from portal.scheduling.engine.model import Outcome, Policy, QueueVerdict, Snapshot, Workload
from portal.scheduling.engine.outlook import Outlook
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.engine.usage import with_fallbacks
from portal.scheduling.engine.verdicts import verdict

GPU, SECOND_GPU, CPU = "gpu:a", "gpu:b", "cpu_milli"
STEPS = 40


def site(chance: Random) -> Scheduler:
    def limit(most: int) -> Limit:
        return Limit(
            chance.randint(0, most), chance.choice((None, 0, most)), chance.choice((None, 0, most // 2))
        )

    teams = tuple(
        Team(
            f"t{number}",
            chance.choice(("all", "sub", "")),
            {name: limit(6) for name in (GPU, SECOND_GPU, CPU) if chance.random() < 0.7},
            weight_milli=chance.choice((500, 1000, 2000)),
            user_caps={GPU: chance.randint(1, 5)} if chance.random() < 0.3 else {},
        )
        for number in range(4)
    )
    rules = Fungibility(chance.random() < 0.5, chance.random() < 0.5)
    cohorts = (
        Cohort("all", fungibility=rules),
        Cohort("sub", chance.choice(("", "all")), fungibility=rules),
    )
    policy = Policy(
        preemption=chance.random() < 0.7,
        min_run_s=chance.choice((0, 600)),
        patience_s=chance.choice((0, 900)),
    )
    capacity = {GPU: chance.randint(4, 12), SECOND_GPU: chance.randint(2, 8), CPU: chance.randint(4, 16)}
    return Scheduler(Snapshot(0, teams, cohorts, capacity=capacity, policy=policy))


def request(chance: Random, number: int, now_s: int) -> Workload:
    workload = Workload(
        f"w{number:04d}",
        f"t{chance.randrange(4)}",
        {GPU: chance.randint(0, 4), CPU: chance.randint(0, 4)},
        user=chance.choice(("ann", "bob")),
        priority=chance.choice((0, 0, 0, 1)),
        created_s=now_s,
        duration_s=chance.choice((60, 900, 7200, 86_400)),
        preemptible=chance.random() < 0.8,
        loses_work=chance.random() < 0.5,
    )
    if chance.random() < 0.6:
        return workload
    amounts = {SECOND_GPU: chance.randint(1, 3), CPU: chance.randint(0, 4)}
    later = replace(workload, amounts=amounts, choice=1, place="b", preemptible=chance.random() < 0.8)
    return replace(workload, fallbacks=(later,), start_within_s=chance.choice((0, 0, 1800, 40_000)))


def differences(previewed: QueueVerdict, scheduler: Scheduler, workload: Workload) -> list[str]:
    """Create the request; return what differs from its preview."""
    now_s = scheduler.now_s
    scheduler.submit(workload)
    cycle = scheduler.cycle(now_s)
    scheduler.apply(cycle, now_s)
    if previewed.outcome in (Outcome.IMPOSSIBLE, Outcome.NEEDS_APPROVAL):
        if workload.id not in cycle.starts:
            scheduler.withdraw(workload.id)
        return ["refused, and starts"] if workload.id in cycle.starts else []
    victims = tuple(victim for victim in cycle.victims if victim.beneficiary == workload.id)
    differing = [] if previewed.victims == victims else ["who makes room"]
    if (previewed.outcome is Outcome.FITS_NOW) != (workload.id in cycle.starts):
        return [*differing, f"{previewed.outcome.value}, and not so"]
    if previewed.outcome is Outcome.FITS_NOW:
        return differing
    outlook = Outlook(scheduler.clone())
    outlook.compute_all()
    got = outlook.of(workload.id)
    eta_s = got.eta.eta_s if got.eta else None
    pairs = {"place": (previewed.position, got.position or 0), "expected start": (previewed.eta_s, eta_s)}
    pairs["reason"] = (previewed.blocker, got.blocker)  # type: ignore[assignment]
    return differing + [name for name, (one, other) in pairs.items() if one != other]


def world(seed: int) -> tuple[int, Counter[str]]:
    """Run one site over time; return the number of previews and the differences found."""
    chance = Random(seed)
    scheduler = site(chance)
    wrong: Counter[str] = Counter()
    for number in range(STEPS):
        now_s = scheduler.now_s + chance.choice((1, 60, 1800, 40_000))
        for name in scheduler.ended_by(now_s):
            finished = scheduler.finish(name)
            if (
                finished.preempt_at_s is not None
                and now_s < finished.started_s + finished.workload.duration_s
            ):
                again = finished.workload.preempted + 1
                scheduler.submit(replace(finished.workload, nominated=False, preempted=again))
        if chance.random() < 0.7:
            scheduler.apply(scheduler.cycle(now_s), now_s)
        scheduler.now_s = now_s
        workload = request(chance, number, now_s)
        if workload.fallbacks:
            # Register the fallbacks like a snapshot does.
            workload = with_fallbacks(scheduler.usage, (replace(workload, fallbacks=()), *workload.fallbacks))
        wrong.update(differences(verdict(scheduler, workload), scheduler, workload))
    return STEPS, wrong


def probe(worlds: int, seed: int = 1) -> tuple[int, Counter[str]]:
    """Run `worlds` sites, beginning with this seed."""
    previews, wrong = 0, Counter[str]()
    for number in range(seed, seed + worlds):
        count, its = world(number)
        previews, wrong = previews + count, wrong + its
    return previews, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling.previews", description=__doc__)
    parser.add_argument("--worlds", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    previews, wrong = probe(options.worlds, options.seed)
    print(f"{previews} previews, {sum(wrong.values())} differences {dict(wrong) or ''}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
