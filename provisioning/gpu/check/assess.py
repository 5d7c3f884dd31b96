"""Judge tests by the child's raw results, the plan and the facts. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from provisioning.gpu.check import joint_load, thresholds, wrong_pairs
from provisioning.gpu.check.hardware_state import MemoryState
from provisioning.gpu.check.plan import COLLECTIVE_PROBES, WITH_PEERS, Test
from provisioning.gpu.check.types import Facts, Judgement, Raw, Status, TestResult

WATCHDOG = "The display watchdog stopped a kernel. Move the display to another GPU, then check this GPU again"
_TRANSPORTS = {"rdma": "RDMA", "socket": "sockets"}
THIRD_NODE = "Check each of the two nodes with a third node to find the faulty end"
_PCIE = ("to_device_gb_s", "to_host_gb_s")
# Tests whose purpose is a measurement; without it they are incomplete.
_MEASURING: Mapping[str, tuple[str, ...]] = {
    "copy": ("copy_gb_s",),
    "memory": thresholds.MEMORY_METRICS,
    "pcie": _PCIE,
    "two_nodes": (thresholds.BETWEEN_NODES,),
    **{probe: (metric,) for probe, metric in thresholds.UNIT_METRIC.items()},
}
_UNITS = frozenset(thresholds.UNIT_METRIC)
_COVERED = frozenset({"residue", "address", "inversions", "modulo20", "bit_fade"})
_COMPARING = (
    frozenset({"canary", "exact", "burn", "power_steps", "copy", "memory", "pcie", "two_nodes", *WITH_PEERS})
    | _COVERED
    | _UNITS
)


def judgements(
    test: Test,
    raw: Raw,
    facts: Facts,
    *,
    baseline: Mapping[str, float] | None,
    node_median: Mapping[str, float] | None,
) -> tuple[Judgement, ...]:
    """Return the judgements of all values that have, or should have, a floor."""
    results = []
    for metric, value in raw.measures.items():
        judged = metric in (*thresholds.MEMORY_METRICS, *thresholds.UNIT_METRICS)
        judged = judged or metric.endswith(thresholds.PRODUCT_RATES)
        if judged or metric.startswith(thresholds.ALL_PAIRS):
            results.append(thresholds.judge(metric, value, facts, baseline=baseline, node_median=node_median))
        elif test.probe == "pcie" and metric in _PCIE:
            results.append(thresholds.judge_pcie(metric, value, facts))
        elif metric.startswith("peer_gb_s:"):
            links = facts.links.get(metric.removeprefix("peer_gb_s:"))
            results.append(thresholds.judge_peer(metric, value, links, facts))
        elif metric.startswith(thresholds.BUS_GB_S):
            results.append(thresholds.judge(metric, value, facts, baseline=baseline, node_median=node_median))
        elif metric.startswith(thresholds.JOINT):
            results.append(thresholds.judge_joint(metric, value))
        elif metric == thresholds.BETWEEN_NODES:
            results.append(thresholds.judge_port(metric, value, float(test.params.get("port_gb_s", 0.0))))
    return tuple(results)


def _problem(
    test: Test, raw: Raw, baseline: Mapping[str, float] | None, memory: MemoryState | None
) -> tuple[Status, str] | None:
    """Return a result that is independent of measured values, or None."""
    if raw.state == "hung":
        return Status.HUNG, raw.reason
    if raw.state in ("skipped", "absent"):
        return Status.SKIPPED, f"Not run. {raw.reason}"
    if raw.state == "error":
        if "CUDA_ERROR_LAUNCH_TIMEOUT" in raw.error:
            return Status.SKIPPED, f"The test did not complete. {WATCHDOG}"
        if raw.device_fault:
            return Status.FAILED, f"The device reported an error: {raw.error}"
        return Status.SKIPPED, f"The test did not complete. {raw.error}"
    if raw.state != "done":
        return Status.SKIPPED, f"The result has an unknown state: {raw.state!r}"
    if test.probe in _COMPARING and raw.errors is None:
        return Status.SKIPPED, "The test compared no data"
    if raw.errors:
        if test.probe == "canary":
            missed = ", ".join(map(str, raw.detail.get("missed", ())))
            return Status.FAILED, f"A planted error was not detected by: {missed}"
        if test.probe == "two_nodes":
            return Status.WARNED, f"{_wrong_words(raw)} in sums with {_partner(test)}. {THIRD_NODE}"
        pairs = "; ".join(map(str, wrong_pairs.pairs_of(raw.detail, own=True)))
        return Status.FAILED, f"{_wrong_words(raw)}{_devices_with_errors(raw)}" + (
            f" ({pairs})" if pairs else ""
        )
    missing = [metric for metric in _MEASURING.get(test.probe, ()) if metric not in raw.measures]
    if test.probe == "burn" and not any(metric.endswith(thresholds.PRODUCT_RATES) for metric in raw.measures):
        missing.append("TFLOP/s")
    if test.probe in COLLECTIVE_PROBES and not any(
        metric.startswith(thresholds.BUS_GB_S) for metric in raw.measures
    ):
        missing.append(thresholds.BUS_GB_S)
    if test.probe == joint_load.PROBE and not any(m.startswith(thresholds.JOINT) for m in raw.measures):
        missing.append(thresholds.JOINT)
    if missing:
        return Status.SKIPPED, f"The test did not measure {', '.join(missing)}"
    if test.probe in _COVERED:
        covered = raw.measures.get("coverage", 0.0)
        if covered < thresholds.COVERAGE:
            return Status.SKIPPED, f"Only {covered:.1%} of the free memory was tested"
    before = (baseline or {}).get(memory.metric) if memory is not None else None
    if test.probe == "residue" and before is not None and memory is not None:
        missing_mib = before - raw.measures.get("free_mib", 0.0)
        if missing_mib > thresholds.LEAK_MIB and memory.display:
            holders = f"Graphics programs: {memory.holders}" if memory.holders else "A display is active"
            return Status.WARNED, f"{missing_mib:.0f} MiB less free memory than in the last check. {holders}"
        if missing_mib > thresholds.LEAK_MIB:
            return (
                Status.FAILED,
                f"{missing_mib:.0f} MiB of memory are missing although no process uses the device",
            )
    return None


def _wrong_words(raw: Raw) -> str:
    return "1 wrong word" if raw.errors == 1 else f"{raw.errors} wrong words"


def _devices_with_errors(raw: Raw) -> str:
    """Return which of several devices have wrong words, if known."""
    by_rank = raw.detail.get("wrong_words_by_rank")
    counts = by_rank.items() if isinstance(by_rank, dict) else ()
    places = [f"{name} ({count})" for name, count in counts if count]
    return f", on {', '.join(places)}" if places else ""


def assess(
    test: Test,
    raw: Raw | None,
    facts: Facts,
    *,
    link_state: str = "",
    baseline: Mapping[str, float] | None = None,
    node_median: Mapping[str, float] | None = None,
    memory: MemoryState | None = None,
) -> TestResult:
    """Return one judged test. `raw` None: not reached. `link_state`: problems of the PCIe link under load.

    `memory`: the state for which `baseline` holds the free memory; None: it is not compared.
    """
    if raw is None:
        return TestResult(test.name, Status.SKIPPED, test.required, "Not reached")
    judged = judgements(test, raw, facts, baseline=baseline, node_median=node_median)
    settled = _problem(test, raw, baseline, memory)
    if settled is not None:
        status, text = settled
    else:
        status, text = _OF.get(test.probe, _worst_judgement)(judged)
        if test.probe == "two_nodes":
            text = f"{text}, with {_partner(test)} over {_TRANSPORTS.get(str(test.params.get('transport')))}"
            text = f"{text}. {THIRD_NODE}" if status == Status.WARNED else text
        if test.probe == "pcie" and link_state and status == Status.PASSED:
            status, text = Status.WARNED, f"The PCIe link ran at {link_state} under load"
    return TestResult(
        name=test.name,
        status=status,
        required=test.required and not (raw.state == "absent" and test.probe in COLLECTIVE_PROBES),
        text=text,
        duration_ms=raw.duration_ms,
        errors=raw.errors,
        judgements=judged,
        measures=raw.measures,
        detail=raw.detail,
    )


def _worst_judgement(judged: Sequence[Judgement]) -> tuple[Status, str]:
    """Return the worst judgement with its text."""
    for status in (Status.FAILED, Status.WARNED):
        low = [j for j in judged if j.status == status]
        if low:
            return status, "; ".join(_describe(j) for j in low)
    if unjudged := [j for j in judged if j.open]:
        # The results are correct. A speed without a floor is a warning.
        return Status.WARNED, "; ".join(f"{j.metric}: {j.text}" for j in unjudged)
    return Status.PASSED, "; ".join(f"{j.metric} {j.value:g} {j.unit}" for j in judged) or "No error"


def _partner(test: Test) -> str:
    return str(test.params.get("partner") or "the other node")


def _judge_links(judged: Sequence[Judgement]) -> tuple[Status, str]:
    """Downgrade a slow link to one peer if others are not slow: its other end may be the cause."""
    status, text = _worst_judgement(judged)
    others = [j for j in judged if not j.advisory and j.status != Status.FAILED]
    if status == Status.FAILED and others:
        status, text = (
            Status.WARNED,
            f"{text}; its other links are fast enough. Check the other end of this link first",
        )
    return status, text


def _judge_together(judged: Sequence[Judgement]) -> tuple[Status, str]:
    """Downgrade a joint measurement of all devices: any of them may be the cause."""
    status, text = _worst_judgement(judged)
    if status == Status.FAILED:
        status, text = Status.WARNED, f"{text}; any of the devices may be the cause"
    return status, text


def _judge_units(judged: Sequence[Judgement]) -> tuple[Status, str]:
    """Downgrade a slow unit: no datasheet says how fast it should be."""
    status, text = _worst_judgement(judged)
    return (Status.WARNED if status == Status.FAILED else status), text


_OF: Mapping[str, Callable[[Sequence[Judgement]], tuple[Status, str]]] = {
    "peers": _judge_links,
    "all_pairs": _judge_together,
    "all_reduce": _judge_together,
    **dict.fromkeys(_UNITS, _judge_units),
}


def _describe(j: Judgement) -> str:
    floor = j.fail_below if j.status == Status.FAILED else j.warn_below
    against = {"node_median": "node median", "alone": "single-device"}.get(j.against, j.against)
    note = f". {j.text}" if j.text else ""
    return f"{j.metric} {j.value:g} {j.unit} is below the {against} limit of {floor:g}{note}"


def raw_of(message: Mapping[str, Any]) -> Raw | None:
    """Convert a `result` message; return None if it is malformed."""
    try:
        errors = message.get("errors")
        measures = {str(k): float(v) for k, v in dict(message.get("measures") or {}).items()}
        if errors is not None and (not isinstance(errors, int) or isinstance(errors, bool) or errors < 0):
            return None
        # NaN compares false with every floor, so reject it here.
        if not all(0.0 <= v < 1e15 for v in measures.values()):
            return None
        detail = dict(message.get("detail") or {})
        wrong_pairs.pairs_of(detail, own=True)
        joint_load.results_of(detail)
        return Raw(
            test=str(message["test"]),
            state=str(message["state"]),
            errors=errors,
            measures=measures,
            detail=detail,
            reason=str(message.get("reason", "")),
            error=str(message.get("error", "")),
            device_fault=bool(message.get("device_fault", False)),
            duration_ms=int(message.get("duration_ms", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
