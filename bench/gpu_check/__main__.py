"""Acceptance on a GPU: `python -m bench.gpu_check [--uuid GPU-…] [--all-levels] [--peer GPU-…] [--out DIR]`.

Writes `gpu-check.json` (all figures and reports) and `gpu-check.md` (a section for docs/measurements.md, with
the time of each test). Exit codes: 0 all requirements met, 1 a requirement missed, 4 no driver or GPU. Takes
two to three minutes; with `--all-levels`, which adds a shortened extended level, up to eight. The device and
its peers must be idle; their memory is overwritten.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from provisioning.gpu.check.plan import Test, plan_for
from provisioning.gpu.check.report import Report
from provisioning.gpu.check.runner import run_check
from provisioning.gpu.check.session import Simulation
from provisioning.gpu.check.thresholds import peak_of
from provisioning.gpu.check.types import Facts, Level, Status, TestResult, Verdict

QUICK_S, STANDARD_S, EXTENDED_S = 5.0, 60.0, 330.0
# Seconds of the longest tests of the extended level, by probe, so that all levels take less than 8 min.
SHORTENED = {"bit_fade": 15.0, "burn": 5.0, "joint_burn": 20.0}
STEADY_S = 40.0
COPY_SHARE, BF16_SHARE, COVERAGE = 0.88, 0.75, 0.98
KILL_AFTER_S, KILLED_WITHIN_S = 0.5, 20.0


@dataclass(frozen=True, slots=True)
class Line:
    """A requirement, its measured value and whether it is met (None if it could not be measured)."""

    name: str
    required: str
    measured: str
    met: bool | None
    cause: str = ""


def first_device() -> str:
    """Return the UUID of the first GPU. Raises `LookupError` with the reason if there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        if not count:
            raise LookupError("NVML lists no GPU.")
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise LookupError(f"No GPU can be reached: {error}. Install the NVIDIA driver.") from error
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _test(report: Report, *names: str) -> TestResult | None:
    return next((t for t in report.tests if t.name in names), None)


def _good(report: Report) -> bool:
    return report.verdict in (Verdict.PASS, Verdict.DEGRADED) or (
        report.simulated and all(t.status == Status.PASSED for t in report.tests)
    )


def _time(name: str, report: Report, seconds: float, limit_s: float) -> Line:
    result = f"{seconds:.1f} s, {report.verdict}"
    slowest = sorted(report.tests, key=lambda t: -t.duration_ms)[:3]
    tests = ", ".join(f"{t.name} {t.duration_ms} ms" for t in slowest)
    cause = "" if _good(report) else report.summary
    return Line(
        f"{name} level",
        f"≤ {limit_s:g} s",
        result,
        seconds <= limit_s and _good(report),
        cause or f"longest: {tests}",
    )


def _share(name: str, value: float | None, peak: float | None, share: float, unit: str, cause: str) -> Line:
    required = f"≥ {share:g} of peak"
    if value is None:
        return Line(name, required, "not measured", None, cause)
    if not peak:
        return Line(name, required, f"{value:.0f} {unit}", None, "no peak is known for this model")
    part = value / peak
    return Line(
        name,
        required,
        f"{value:.0f} {unit} = {part:.3f} of {peak:g}",
        part >= share,
        "" if part >= share else cause,
    )


def _copy(report: Report) -> Line:
    test = _test(report, "bandwidth")
    peak = peak_of(report.facts.name) if report.facts else None
    value = test.measures.get("copy_gb_s") if test else None
    directions = ""
    if test is not None and value is not None:
        kernel, driver = test.measures["copy_kernel_gb_s"], test.measures["copy_driver_gb_s"]
        size = test.measures["working_set_mib"]
        directions = f"kernel {kernel:.0f}, driver's copy {driver:.0f} GB/s, working set {size:.0f} MiB"
    line = _share("device copy", value, peak.memory_gb_s if peak else None, COPY_SHARE, "GB/s", directions)
    return Line(line.name, line.required, line.measured, line.met, line.cause or directions)


def _bf16(report: Report) -> Line:
    test = _test(report, "burn_bf16")
    peak = peak_of(report.facts.name) if report.facts else None
    top = peak.tflops.get("bf16") if peak else None
    if test is None:
        return _share("BF16 product", None, top, BF16_SHARE, "TFLOP/s", "the level has no such test here")
    own = test.measures.get("gemm_bf16_own_tflops")
    if own is not None:
        cause = f"cuBLAS is not installed; the check's own kernel reached {own:.0f} TFLOP/s"
        return _share("BF16 product", None, top, BF16_SHARE, "TFLOP/s", cause)
    clock = report.samples.get("sm_clock_mhz", {})
    power = report.samples.get("power_mw", {})
    cause = (
        f"over 5 s {test.measures.get('gemm_bf16_tflops', 0):.0f} TFLOP/s, SM clock down to "
        f"{clock.get('min')} MHz, power up to {power.get('max')} mW; {test.detail.get('by')}"
    )
    burst = test.measures.get("gemm_bf16_burst_tflops")
    line = _share("BF16 product, initial burst", burst, top, BF16_SHARE, "TFLOP/s", cause)
    return Line(line.name, line.required, line.measured, line.met, line.cause or cause)


def _canary(report: Report) -> Line:
    test = _test(report, "canary")
    if test is None or test.errors is None:
        return Line("canary", "found at its address", "not run", None, report.summary)
    place = f"bit {test.detail.get('planted_bit')} of word {test.detail.get('planted_index')}"
    checkers = int(test.measures.get("checkers", 0))
    text = f"{place}, {checkers - test.errors} of {checkers} checkers"
    return Line("canary", "found at its address", text, test.errors == 0 and checkers > 0)


def _coverage(report: Report) -> Line:
    test = _test(report, "residue")
    if test is None or "coverage" not in test.measures:
        return Line("scrub coverage", f"≥ {COVERAGE:g}", "not run", None, report.summary)
    value = test.measures["coverage"]
    result = f"{value:.4f} ({test.measures['tested_mib']:.0f} MiB), {test.errors} words left"
    return Line("scrub coverage", f"≥ {COVERAGE:g}", result, value >= COVERAGE and test.errors == 0)


def _killed(uuid: str, run: Callable[..., Report]) -> tuple[Line, Report]:
    """Run a test that exceeds its deadline; only its process is ended."""
    plan = [Test("bit_fade", "bit_fade", KILL_AFTER_S, params={"seconds": 30.0})]
    started = time.monotonic()
    report = run(uuid, "quick", plan=plan)
    took = time.monotonic() - started
    met = report.verdict == Verdict.HUNG and not report.abandoned and took < KILLED_WITHIN_S
    result = f"{report.verdict} after {took:.1f} s, worker alive"
    return Line(
        "kill at the deadline", f"hung, < {KILLED_WITHIN_S:g} s", result, met, "" if met else report.summary
    ), report


def _after(report: Report) -> Line:
    return Line(
        "quick level after the kill",
        "no trace left",
        str(report.verdict),
        _good(report),
        "" if _good(report) else report.summary,
    )


def shortened(plan: Sequence[Test]) -> list[Test]:
    """Return the plan with the longest tests shortened."""

    def seconds(test: Test) -> dict[str, Any]:
        required = STEADY_S if test.name == "steady" else SHORTENED.get(test.probe)
        return {} if required is None else {"seconds": required}

    return [replace(test, params={**test.params, **seconds(test)}) for test in plan]


def times(reports: dict[str, Report]) -> str:
    """Return a table of the seconds of each test at each level."""
    columns = {name: report for name, report in reports.items() if name in ("quick", "standard", "extended")}
    names = list(dict.fromkeys(test.name for report in columns.values() for test in report.tests))
    rows = []
    for name in names:
        tests = [_test(report, name) for report in columns.values()]
        cells = ["" if t is None else f"{t.duration_ms / 1000:.1f} {t.status}" for t in tests]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    head = [f"| test, s | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    return "\n".join([*head, *rows, ""])


def accept(
    uuid: str, run: Callable[..., Report], *, all_levels: bool = False, peers: Sequence[str] = ()
) -> tuple[list[Line], dict[str, Report]]:
    """Check all requirements; return them and the reports on which they are based."""
    reports: dict[str, Report] = {}

    def timed(name: str, level: str, **more: Any) -> float:
        print(f"{name} …", file=sys.stderr, flush=True)
        started = time.monotonic()
        reports[name] = run(uuid, level, **more)
        return time.monotonic() - started

    # The first run after a driver's start is slower: it shows the time on a cold node.
    cold_s = timed("quick, cold", "quick")
    quick_s = timed("quick", "quick")
    standard_s = timed("standard", "standard", peers=peers)
    print("kill at the deadline …", file=sys.stderr, flush=True)
    kill, reports["killed"] = _killed(uuid, run)
    timed("quick, after", "quick")
    quick, standard = reports["quick"], reports["standard"]
    extended = []
    if all_levels:
        plan = shortened(plan_for(Level.EXTENDED, quick.facts or Facts(uuid), peers))
        extended_s = timed("extended", "extended", peers=peers, deadline_s=EXTENDED_S, plan=plan)
        extended.append(_time("extended", reports["extended"], extended_s, EXTENDED_S))
    return [
        _time("quick", quick, quick_s, QUICK_S),
        Line("quick level, first run", "told", f"{cold_s:.1f} s", True),
        _time("standard", standard, standard_s, STANDARD_S),
        *extended,
        _copy(standard),
        _bf16(standard),
        _canary(quick),
        _coverage(quick),
        kill,
        _after(reports["quick, after"]),
    ], reports


def markdown(lines: Sequence[Line], reports: dict[str, Report], at: datetime) -> str:
    """Return a section for docs/measurements.md."""
    report = reports["standard"]
    facts = report.facts
    marks = {True: "met", False: "**missed**", None: "not measured"}
    name = facts.name if facts else report.uuid
    head = "## GPU check on a device"
    if report.simulated:
        head += " (simulated: these figures say nothing about a device)"
    driver = f"driver {facts.driver_version}, CUDA {facts.cuda_version}, " if facts else ""
    rows = [f"| {x.name} | {x.required} | {x.measured} | {marks[x.met]} | {x.cause} |" for x in lines]
    return "\n".join(
        [
            head,
            "",
            f"{name}, {driver}kernels: {report.software.get('kernels', '')}, "
            f"products: {report.software.get('blas', '')}; {at:%Y-%m-%d}. "
            "Generated by `python -m bench.gpu_check`.",
            "",
            "| what | required | measured | | remark |",
            "|---|---|---|---|---|",
            *rows,
            "",
            times(reports),
        ]
    )


def main(argv: Sequence[str] | None = None, *, simulation: Simulation | None = None, **options: Any) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=__doc__)
    parser.add_argument("--uuid", help="the device; without it the first one")
    parser.add_argument("--all-levels", action="store_true", help="also the extended level, shortened")
    parser.add_argument("--peer", action="append", default=[], help="another idle GPU of the node")
    parser.add_argument("--out", default="var/bench", help="where the results go")
    args = parser.parse_args(argv)
    try:
        uuid = args.uuid or first_device()
    except LookupError as error:
        print(f"No acceptance without a device. {error}", file=sys.stderr)
        return 4

    def run(device: str, level: str, **more: Any) -> Report:
        return run_check(device, level, simulation=simulation, **{**options, **more})

    lines, reports = accept(uuid, run, all_levels=args.all_levels, peers=args.peer)
    unavailable = reports["quick"].unavailable
    if unavailable is not None:
        print(f"{unavailable.text} Missing: {unavailable.library}. {unavailable.fix}", file=sys.stderr)
        return 4
    at = datetime.now(UTC)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    value = {
        "at": at.isoformat(timespec="seconds"),
        "simulated": simulation is not None,
        "lines": [asdict(line) for line in lines],
        "reports": {name: report.to_dict() for name, report in reports.items()},
    }
    (out / "gpu-check.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    text = markdown(lines, reports, at)
    (out / "gpu-check.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
