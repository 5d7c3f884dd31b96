"""Reports of checks and scrubs on simulated devices: generated values, judged by the check's own rules.

Every report is marked as simulated, and by those rules never a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioning.gpu.check import health, joint_load
from provisioning.gpu.check import verdict as judging
from provisioning.gpu.check.plan import DEADLINE_S, WITH_PEERS, Test, plan_for
from provisioning.gpu.check.report import Report, Unavailable, summarise, summary_of
from provisioning.gpu.check.session import Check, Simulation, Timing
from provisioning.gpu.check.thresholds import BETWEEN_NODES, JOINT, PCIE_PEAK, UNIT_METRIC, Peak, peak_of
from provisioning.gpu.check.types import Action, Facts, Level, Progress, Raw, Rendezvous, Severity, Verdict
from provisioning.gpu.scrub import CHUNK_MIN, MIB, DeviceFault, ScrubResult, ScrubVerdict, judge

# Fraction of its datasheet that a healthy device reaches (slightly less without HBM), and the fraction of
# that for slow memory.
HEALTHY, HEALTHY_GDDR, SLOW = 0.88, 0.80, 0.875
LEAKED = 0.1
JOINT_HEALTHY, JOINT_SLOW = 97.0, 71.0
"""Speed in percent of that alone, while all devices of the node are busy."""
GENERATION = 5
PORT_GB_S = 50.0
NVML_NAMES = {
    "A100": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-SXM4-80GB",
    "H100": "H100 80GB HBM3",
    "V100": "V100-SXM2-16GB",
    "V100-32GB": "V100-SXM2-32GB",
}
CAPABILITY = {"T4": (7, 5), "V100": (7, 0), "A10": (8, 6), "A30": (8, 0), "A100": (8, 0), "L4": (8, 9)}
FALLBACK = "H100 80GB HBM3"
SECONDS = {Level.QUICK: 4.0, Level.STANDARD: 50.0, Level.EXTENDED: 900.0}

OnProgress = Callable[[Progress], object]
Sleep = Callable[[float], object]


def check_report(
    uuid: str,
    level: str,
    *,
    model: str,
    memory_mib: int,
    faults: frozenset[str],
    busy: bool,
    now: float,
    check_s: float,
    baseline: Mapping[str, float] | None = None,
    node_median: Mapping[str, float] | None = None,
    meeting: Rendezvous | None = None,
    joint_with: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    sleep: Sleep = float,
) -> Report:
    """Return a scripted report. `check_s` is spent with `sleep`, divided among the tests.

    `joint_with`: the peers of a joint check.
    """
    check_level = Level(level)
    facts = _facts(uuid, model, memory_mib)
    check = Check(
        uuid, check_level, peers=(), deadline_s=DEADLINE_S[check_level], on_progress=on_progress,
        simulation=Simulation("scripted", "scripted"), child=(), watcher=(), timing=Timing(), plan=None,
    )  # fmt: skip
    state = check.state
    state.facts = facts
    state.before = _health(busy=busy)
    state.xid_events = True
    check.report_progress(Progress("prepare", text="Reading the state of the device."))
    if busy:
        state.findings += _stranger_findings(state.before)
    else:
        plan = plan_for(check_level, facts, joint_with, meeting=meeting, joint=bool(joint_with))
        _run_tests(check, plan, faults, memory_mib, check_s, sleep, joint_with)
    free = _free_mib(memory_mib, frozenset())
    tests, findings = check.judge({"free_mib:ecc": free, **(baseline or {})}, node_median)
    verdict, action = judging.decide(findings, tests, simulated=True)
    summary = summary_of(verdict, findings, tests, True)
    check.report_progress(Progress("end", done=len(state.results), total=len(state.plan), text=summary))
    took_s = SECONDS[check_level] if state.ended else SECONDS[check_level] / 2
    started = datetime.fromtimestamp(now, UTC)
    return Report(
        uuid=uuid, level=check_level, verdict=verdict, action=action, summary=summary,
        findings=tuple(findings), tests=tests, started_at=started,
        finished_at=started + timedelta(seconds=took_s), nonce=state.nonce, simulated=True,
        facts=Facts(**{**{name: getattr(facts, name) for name in Facts.__slots__}, "name": model}),
        health_before=state.before, health_after=state.after, samples=summarise(state.samples),
        xids=tuple(state.xids), software={"kernels": "none: simulated", "blas": "none: simulated"},
    )  # fmt: skip


def no_such_device(uuid: str, level: str, now: float) -> Report:
    """Return the report for a missing device."""
    text = f"This simulated node has no device {uuid}."
    fix = "Refresh the inventory, and check “fault_vanish” in the pool's settings."
    at = datetime.fromtimestamp(now, UTC)
    return Report(
        uuid=uuid, level=Level(level), verdict=Verdict.INCONCLUSIVE, action=Action.INSPECT,
        summary=f"Simulated: no real device was checked. {text}", findings=(), tests=(), started_at=at,
        finished_at=at, nonce="scripted-no-device", simulated=True,
        unavailable=Unavailable(text, "device", fix),
    )  # fmt: skip


def scrub_result(
    uuid: str, *, memory_mib: int, faults: frozenset[str], busy: bool, baseline_mib: int | None
) -> ScrubResult:
    """Return a scripted scrub result."""
    if "hang" in faults:
        text = "The scrub exceeded its time limit and was stopped at “clear”. Check this GPU."
        return ScrubResult(uuid, ScrubVerdict.HUNG, text, simulated=True)
    if busy:
        text = "A workspace is using the GPU, so nothing was scrubbed. Scrub the GPU again later."
        return ScrubResult(uuid, ScrubVerdict.BUSY, text, simulated=True)
    free = _free_mib(memory_mib, faults) * MIB
    scrubbed = free - free % CHUNK_MIN
    lost = "xid79" in faults
    verdict, text = judge(
        free=free,
        total=memory_mib * MIB,
        scrubbed=scrubbed,
        left=None if lost else 0,
        others=0,
        baseline_mib=baseline_mib or _free_mib(memory_mib, frozenset()),
        error=DeviceFault("CUDA_ERROR_DEVICE_UNAVAILABLE") if lost else None,
    )
    return ScrubResult(
        uuid=uuid,
        verdict=verdict,
        text=text,
        free_mib=free // MIB,
        total_mib=memory_mib,
        scrubbed_mib=scrubbed // MIB,
        coverage_per_mille=scrubbed * 1000 // free if free else 0,
        residue_words=0,
        left_words=None if lost else 0,
        baseline_mib=baseline_mib,
        simulated=True,
    )


# --- course of a simulated check --------------------------------------------------------------------


def _run_tests(
    check: Check,
    plan: Sequence[Test],
    faults: frozenset[str],
    memory_mib: int,
    check_s: float,
    sleep: Sleep,
    peers: Sequence[str],
) -> None:
    state = check.state
    state.plan = tuple(plan)
    peak = peak_of(state.facts.name)
    assert peak is not None
    for number, test in enumerate(plan):
        check.report_progress(Progress("start", test.name, number, len(plan)))
        if check_s:
            sleep(check_s / len(plan))
        if number == len(plan) // 2:
            if "xid79" in faults:
                # The device is lost during a test, as reported by NVML.
                state.xids.append(79)
                state.lost = True
                state.find("lost", Severity.FAIL, "The device has fallen off the bus.", Action.REBOOT)
                return
            if "hang" in faults:
                text = f"Not finished after {test.deadline_s:g} s"
                took = round(test.deadline_s * 1000)
                state.results[test.name] = Raw(test.name, "hung", reason=text, duration_ms=took)
                state.after = state.before
                return
        if test.probe in WITH_PEERS:
            state.results[test.name] = _raw_with_peers(test, peak, [state.facts.uuid, *peers], faults)
        else:
            state.results[test.name] = _raw_result(test, peak, faults, memory_mib)
        check.report_progress(Progress("result", test.name, number + 1, len(plan)))
    state.samples = [_sample(at) for at in range(3)]
    state.link = [(GENERATION, 16)]
    state.after = _health(uncorrected=4 if "ecc" in faults else 0)
    state.ended = True


def _raw_result(test: Test, peak: Peak, faults: frozenset[str], memory_mib: int) -> Raw:
    reached = HEALTHY if peak.hbm else HEALTHY_GDDR
    memory = peak.memory_gb_s * reached * (SLOW if "slow_memory" in faults else 1.0)
    link = PCIE_PEAK[GENERATION] * HEALTHY
    dtype = str(test.params.get("dtype", ""))
    measures: dict[str, float] = {}
    match test.probe:
        case "residue":
            free = float(_free_mib(memory_mib, faults))
            measures = {"coverage": 1.0, "free_mib": free, "total_mib": float(memory_mib)}
        case "address" | "inversions" | "modulo20" | "bit_fade":
            measures = {"coverage": 1.0}
        case "copy":
            measures = {"copy_gb_s": memory}
        case "memory":
            measures = {"copy_gb_s": memory, "read_gb_s": memory, "write_gb_s": memory}
        case "pcie":
            measures = {"to_device_gb_s": link, "to_host_gb_s": link}
        case "two_nodes":
            measures = {BETWEEN_NODES: HEALTHY * float(test.params.get("port_gb_s") or PORT_GB_S)}
        case "functions" | "atomics" | "shared_memory" | "caches":
            measures = {UNIT_METRIC[test.probe]: peak.sms * HEALTHY}
        case "burn" if dtype == "int8":
            measures = {"gemm_int8_own_tops": peak.tflops["fp16"] * HEALTHY}
        case "burn":
            measures = {f"gemm_{dtype}_tflops": peak.tflops[dtype] * HEALTHY}
    rounded = {name: round(value, 2) for name, value in measures.items()}
    return Raw(test.name, "done", errors=0, measures=rounded, duration_ms=round(1000 * test.deadline_s / 20))


def _raw_with_peers(test: Test, peak: Peak, uuids: Sequence[str], faults: frozenset[str]) -> Raw:
    """Return the result of a test of several devices: power suffices for all, and there are no links."""
    if test.probe != joint_load.PROBE:
        return Raw(test.name, "skipped", reason="Simulated devices have no links.")
    alone = round(peak.tflops[str(test.params["dtype"])] * HEALTHY, 3)
    percents = [JOINT_SLOW if "slow_joint" in faults else JOINT_HEALTHY, *[JOINT_HEALTHY] * (len(uuids) - 1)]
    by_device = {
        uuid: {
            "alone_tflops": alone, "together_tflops": round(alone * percent / 100, 3), "percent": percent,
            "errors": 0, "canary_found": True,
        }
        for uuid, percent in zip(uuids, percents, strict=True)
    }  # fmt: skip
    measures = {
        f"{JOINT}{len(uuids)}": percents[0],
        "joint_burn_alone": alone,
        "joint_burn_together": by_device[uuids[0]]["together_tflops"],
    }
    took_ms = round(1000 * test.deadline_s / 2)
    return Raw(
        test.name, "done", errors=0, measures=measures, detail={"by_device": by_device}, duration_ms=took_ms
    )


def _facts(uuid: str, model: str, memory_mib: int) -> Facts:
    """Return facts with the name of a real model, so that its datasheet applies."""
    plain = model.removeprefix("Simulated ")
    name = NVML_NAMES.get(plain, plain)
    peak = peak_of(name)
    if peak is None or "fp16" not in peak.tflops:
        # No complete datasheet: judge it like a common model.
        name = FALLBACK
        peak = peak_of(name)
        assert peak is not None
    capability = next((CAPABILITY[key] for key in (plain, plain.split("-")[0]) if key in CAPABILITY), (9, 0))
    if "fp8" not in peak.tflops:
        capability = min(capability, (8, 6))
    return Facts(
        uuid,
        name=name,
        sms=peak.sms,
        memory_mib=memory_mib,
        pcie_max_gen=GENERATION,
        pcie_max_width=16,
        compute_capability=capability,
        driver_version="simulated",
        ecc=True,
    )


def _health(*, uncorrected: int = 0, busy: bool = False) -> dict[str, Any]:
    return {
        "ecc_corrected": 0,
        "ecc_uncorrected": uncorrected,
        "ecc_corrected_aggregate": 0,
        "ecc_uncorrected_aggregate": uncorrected,
        "remap_pending": False,
        "remap_failure": False,
        "recovery_action": "none",
        "pcie_replays": 0,
        "processes": [{"pid": 1, "memory_mib": None}] if busy else [],
        "unavailable": [],
        **_sample(0),
    }


def _sample(at: int) -> dict[str, Any]:
    return {
        "pcie_gen": GENERATION,
        "pcie_width": 16,
        "sm_clock_mhz": 1800,
        "memory_clock_mhz": 2600,
        "power_mw": 400_000 + 10_000 * at,
        "temperature_c": 50 + at,
        "throttle": 0,
    }


def _stranger_findings(before: Mapping[str, Any]) -> list[Any]:
    return health.foreign_processes(before["processes"])


def _free_mib(memory_mib: int, faults: frozenset[str]) -> int:
    """Return free memory without processes: reduced by the driver's own use, and by leaks."""
    free = memory_mib - min(600, memory_mib // 20)
    return int(free * (1 - LEAKED)) if "leak" in faults else free
