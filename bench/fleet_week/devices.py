"""A simulated device, and the measurements of a check on it, judged by the check's own rules."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.fleet_week import faults
from bench.fleet_week.faults import FaultClass
from provisioning.check_messages import CheckCommand
from provisioning.drivers.simulated.faults import scrub_result
from provisioning.gpu.check import hardware_state, health, second_look, verdict
from provisioning.gpu.check.plan import DEADLINE_S, Test, plan_for
from provisioning.gpu.check.report import Report, summarise, summary_of
from provisioning.gpu.check.session import Check, Simulation, Timing
from provisioning.gpu.check.thresholds import PCIE_PEAK, UNIT_METRIC, peak_of
from provisioning.gpu.check.types import Facts, Finding, Level, Raw, Severity, TestResult
from provisioning.gpu.scrub import ScrubResult
from provisioning.types import DeviceInfo

DRIVER = "simulated"
SOFTWARE = {"kernels": "none: simulated", "blas": "none: simulated"}
SECONDS = {Level.QUICK: 5.0, Level.STANDARD: 60.0, Level.EXTENDED: 900.0}
SCRUB_S = 5.0
HANGS_AFTER_S = 15.0
REACHED = 0.88
"""Fraction of the datasheet's peak that a healthy device reaches."""
RESERVED_MIB = 600


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    memory_mib: int
    capability: tuple[int, int]
    generation: int
    links: int


MODELS = (
    Model("NVIDIA H100 80GB HBM3", 81_559, (9, 0), 5, 18),
    Model("NVIDIA A100-SXM4-80GB", 81_920, (8, 0), 4, 12),
    Model("NVIDIA L40S", 46_068, (8, 9), 4, 0),
)


@dataclass(slots=True)
class Gpu:
    """`factor` is its speed relative to its model. `slow` and `wrong_tiles` are effects of its fault."""

    uuid: str
    node: str
    index: int
    model: Model
    factor: float = 1.0
    fault: FaultClass | None = None
    since_s: float = 0.0
    slow: float = 1.0
    wrong_tiles: float = 0.0

    @property
    def slot(self) -> str:
        return f"0000:{16 * self.index + 16:02x}:00"

    @property
    def vanished(self) -> bool:
        return self.fault is not None and self.fault.vanishes

    def info(self) -> DeviceInfo:
        return DeviceInfo(
            uuid=self.uuid, index=self.index, model=self.model.name, memory_mib=self.model.memory_mib,
            compute_capability=".".join(map(str, self.model.capability)),
            facts={"pci_bus_id": f"{self.slot}.0"},
        )  # fmt: skip

    def break_down(self, fault: FaultClass, at_s: float, chance: random.Random) -> None:
        self.fault, self.since_s = fault, at_s
        self.slow = chance.uniform(faults.SLOW_FROM, faults.SLOW_TO) if fault.slow else 1.0
        self.wrong_tiles = 10 ** chance.uniform(*faults.WRONG_LOG10) if fault.wrong else 0.0

    def repair(self) -> None:
        self.fault, self.slow, self.wrong_tiles = None, 1.0, 0.0


def check(gpu: Gpu, command: CheckCommand, now: float, chance: random.Random) -> tuple[Report, float]:
    """Return the report, and the seconds for which the check occupied the device."""
    level = Level(command.level)
    session, tests, findings = _measure(gpu, command, None, chance, crowded=chance.random() < faults.CROWDED)
    state, took_s = session.state, SECONDS[level]
    if names := second_look.repeatable_tests(tests, findings):
        # Alone on its node, as in the runner.
        repeated = [test for test in state.plan if test.name in names]
        _again, alone, alone_findings = _measure(gpu, command, repeated, chance, crowded=False)
        tests = second_look.merge_results(tests, alone, names)
        findings = list(second_look.findings_of_both(findings, alone_findings, verdict.of_tests(tests)))
        took_s += SECONDS[level] * len(repeated) / len(state.plan)
    if not state.ended:
        took_s = HANGS_AFTER_S if state.plan else 1.0
    decided, action = verdict.decide(findings, tests, simulated=True)
    started = datetime.fromtimestamp(now, UTC) - timedelta(seconds=took_s)
    report = Report(
        uuid=gpu.uuid, level=level, verdict=decided, action=action,
        summary=summary_of(decided, findings, tests, True), findings=tuple(findings), tests=tests,
        started_at=started, finished_at=datetime.fromtimestamp(now, UTC), nonce=state.nonce, simulated=True,
        facts=state.facts, health_before=state.before, health_after=state.after,
        samples=summarise(state.samples), xids=tuple(state.xids), software=SOFTWARE,
    )  # fmt: skip
    return report, took_s


def _measure(
    gpu: Gpu, command: CheckCommand, of: Sequence[Test] | None, chance: random.Random, *, crowded: bool
) -> tuple[Check, tuple[TestResult, ...], list[Finding]]:
    level = Level(command.level)
    session = Check(
        gpu.uuid, level, peers=(), deadline_s=DEADLINE_S[level], on_progress=None,
        simulation=Simulation(DRIVER, DRIVER), child=(), watcher=(), timing=Timing(), plan=None,
    )  # fmt: skip
    state = session.state
    state.facts, state.software = _facts(gpu), dict(SOFTWARE)
    state.before, state.xid_events = _snapshot(gpu), True
    state.findings += health.state(state.before)
    state.findings += hardware_state.before_load(state.before)
    if gpu.vanished:
        state.lost = True
        state.find("lost", Severity.FAIL, "The device has fallen off the bus.", verdict.Action.REBOOT)
    elif not any(finding.severity == Severity.FAIL for finding in state.findings):
        _load(gpu, session, of or plan_for(level, state.facts), chance, crowded=crowded)
    return session, *session.judge(command.baseline, command.node_median, command.baseline_of)


def _load(gpu: Gpu, session: Check, plan: Sequence[Test], chance: random.Random, *, crowded: bool) -> None:
    state, fault, level = session.state, gpu.fault, session.level
    state.plan = tuple(plan)
    long = level != Level.QUICK
    shows = fault is not None and (long or not fault.only_under_load)
    if fault is not None and fault.hangs:
        first = plan[0]
        text = f"The test did not end within {first.deadline_s:g} s"
        state.results[first.name] = Raw(first.name, "hung", reason=text, duration_ms=15_000)
        state.after = state.before
        return
    wrong = False
    if fault is not None and shows and gpu.wrong_tiles:
        wrong = chance.random() < 1 - (1 - gpu.wrong_tiles) ** faults.TILES[level.value]
    product = next((test.name for test in reversed(plan) if test.probe in ("exact", "burn")), "")
    for test in plan:
        errors = int(wrong and test.name == product)
        state.results[test.name] = _raw(gpu, test, chance, errors, shows=shows, crowded=crowded)
    throttle = fault.throttle if fault is not None and shows else 0
    state.samples = [{**_sample(gpu), "throttle": throttle} for _ in range(3)]
    state.link = [(gpu.model.generation, fault.link_width if fault is not None else 16)]
    storm = 80 if chance.random() < faults.CORRECTED_STORM else 0
    state.after = {**(state.before or {}), "ecc_corrected": storm, "ecc_corrected_aggregate": storm}
    state.ended = True


def _raw(gpu: Gpu, test: Test, chance: random.Random, wrong: int, *, shows: bool, crowded: bool) -> Raw:
    peak = peak_of(gpu.model.name)
    assert peak is not None
    noise = gpu.factor * max(0.9, chance.gauss(1.0, faults.FIGURE_SIGMA))
    noise *= faults.CROWDED_FACTOR if crowded else 1.0
    measures: dict[str, float] = {}
    match test.probe:
        case "residue":
            free = float(gpu.model.memory_mib - RESERVED_MIB)
            measures = {"coverage": 1.0, "free_mib": free, "total_mib": float(gpu.model.memory_mib)}
        case "address" | "inversions" | "modulo20" | "bit_fade":
            measures = {"coverage": 1.0}
        case "copy":
            measures = {"copy_gb_s": peak.memory_gb_s * REACHED * noise}
        case "memory":
            value = peak.memory_gb_s * REACHED * noise
            measures = {"copy_gb_s": value, "read_gb_s": value, "write_gb_s": value}
        case "pcie":
            width = gpu.fault.link_width if gpu.fault is not None else 16
            value = PCIE_PEAK[gpu.model.generation] * REACHED * width / 16 * noise
            measures = {"to_device_gb_s": value, "to_host_gb_s": value}
        case "functions" | "atomics" | "shared_memory" | "caches":
            measures = {UNIT_METRIC[test.probe]: peak.sms * REACHED * noise}
        case "burn":
            dtype = str(test.params["dtype"])
            speed = gpu.slow if shows else 1.0
            if dtype == "int8":
                measures = {"gemm_int8_own_tops": peak.tflops["fp16"] * REACHED * noise * speed}
            else:
                measures = {f"gemm_{dtype}_tflops": peak.tflops[dtype] * REACHED * noise * speed}
    rounded = {name: round(value, 2) for name, value in measures.items()}
    return Raw(test.name, "done", errors=wrong, measures=rounded, duration_ms=round(50 * test.deadline_s))


def _facts(gpu: Gpu) -> Facts:
    peak = peak_of(gpu.model.name)
    assert peak is not None
    return Facts(
        gpu.uuid, name=gpu.model.name, sms=peak.sms, memory_mib=gpu.model.memory_mib,
        pcie_max_gen=gpu.model.generation, pcie_max_width=16, compute_capability=gpu.model.capability,
        driver_version=DRIVER, ecc=True,
    )  # fmt: skip


def _sample(gpu: Gpu) -> dict[str, Any]:
    return {
        "pcie_gen": gpu.model.generation, "pcie_width": 16, "sm_clock_mhz": 1800, "memory_clock_mhz": 2600,
        "power_mw": 400_000, "temperature_c": 55, "throttle": 0,
    }  # fmt: skip


def _snapshot(gpu: Gpu) -> dict[str, Any]:
    down = gpu.fault.links_down if gpu.fault is not None else 0
    links = [{"link": n, "active": n >= down, "errors": 0} for n in range(gpu.model.links)]
    reported: Mapping[str, Any] = gpu.fault.snapshot if gpu.fault is not None else {}
    return {
        "model": gpu.model.name, "ecc_corrected": 0, "ecc_uncorrected": 0, "ecc_corrected_aggregate": 0,
        "ecc_uncorrected_aggregate": 0, "remap_pending": False, "remap_failure": False,
        "recovery_action": "none", "pcie_replays": 0, "processes": [], "unavailable": [], "nvlinks": links,
        "nvlinks_switched": bool(links), "nvlinks_of_partners": gpu.model.links if links else None,
        **_sample(gpu), **reported,
    }  # fmt: skip


def scrub(gpu: Gpu, command: CheckCommand) -> tuple[ScrubResult, float]:
    """Return the result of a scrub and its seconds. A scrub does not detect wrong products."""
    signs = frozenset()
    if gpu.vanished:
        signs = frozenset({"xid79"})
    elif gpu.fault is not None and gpu.fault.hangs:
        signs = frozenset({"hang"})
    result = scrub_result(
        gpu.uuid, memory_mib=gpu.model.memory_mib, faults=signs, busy=False,
        baseline_mib=command.baseline_mib,
    )  # fmt: skip
    return result, HANGS_AFTER_S if "hang" in signs else SCRUB_S
