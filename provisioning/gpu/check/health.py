"""Findings from NVML's values before, during and after a run. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provisioning.gpu.check.types import Action, Finding, Severity
from provisioning.gpu.counters import NARROW, WIDE, step

# XIDs caused by the device, with their remedies by NVIDIA's catalog:
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
# RESET_GPU is a reset, CONTACT_SUPPORT an inspection. 171 and 172 detail 48.
XID_FAIL: Mapping[int, tuple[str, Action]] = {
    46: ("the GPU stopped processing", Action.RESET),
    48: ("uncorrectable double-bit ECC error", Action.DRAIN_AND_RESET),
    54: ("auxiliary power is not connected", Action.INSPECT),
    61: ("internal micro-controller breakpoint", Action.INSPECT),
    62: ("internal micro-controller halt", Action.RESET),
    64: ("row remapper failure", Action.REPLACE),
    74: ("NVLink error", Action.RESET),
    79: ("the device has fallen off the bus", Action.REBOOT),
    95: ("uncontained memory error", Action.DRAIN_AND_RESET),
    109: ("context switch time-out", Action.RESET),
    110: ("security fault", Action.RESET),
    119: ("GSP is not responding", Action.RESET),
    120: ("GSP error", Action.RESET),
    123: ("the power controller could not write to its memory", Action.INSPECT),
    136: ("link training failed", Action.REBOOT),
    140: ("unrecovered ECC error", Action.DRAIN_AND_RESET),
    143: ("GPU initialization error", Action.RESET),
    155: ("NVLink error reported by the driver", Action.RESET),
    156: ("a reset is needed to retire a defective resource", Action.RESET),
    158: ("fatal time-out", Action.RESET),
    171: ("uncorrectable error in device memory", Action.DRAIN_AND_RESET),
    172: ("uncorrectable error in on-chip memory", Action.DRAIN_AND_RESET),
}
# NVLink 5, one XID per unit. The catalog's action depends on the details. Most non-fatal ones are harmless.
XID_NVLINK = range(144, 151)
# Degraded; the catalog says to ignore a single one.
XID_DEGRADED: Mapping[int, str] = {
    121: "error on the link to the CPU (C2C)",
    **dict.fromkeys(XID_NVLINK, "NVLink error; the driver reports separately if a reset is needed"),
}
# Contained: the process was affected, the device can be retried.
XID_RETRY = frozenset({94})
# Caused by applications.
XID_IGNORED = frozenset({13, 31, 43, 45, 68})

THROTTLE_POWER_CAP = 0x04
THROTTLE_THERMAL = 0x20 | 0x40
THROTTLE_POWER_BRAKE = 0x80
THROTTLE_FAIL = 0.10
# Increase during one check that causes a warning.
CORRECTED_WARN = 64
REPLAYS_WARN = 8

_RECOVERY: Mapping[str, Action] = {
    "gpu_reset": Action.RESET,
    "bus_reset": Action.RESET,
    "drain_p2p": Action.DRAIN_AND_RESET,
    "drain_and_reset": Action.DRAIN_AND_RESET,
    "node_reboot": Action.REBOOT,
    "system_reboot": Action.REBOOT,
}


def _growth(before: Mapping[str, Any], after: Mapping[str, Any], name: str, bits: int = WIDE) -> int:
    """Return the increase of a counter; 0 if either value is unavailable."""
    a, b = before.get(name), after.get(name)
    return 0 if a is None or b is None else step(int(a), int(b), bits=bits).by


def _failure(code: str, text: str, action: Action) -> Finding:
    return Finding(code, Severity.FAIL, text, action)


def state(snapshot: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of one snapshot, before a run (then no load is needed) or after it."""
    findings = []
    if snapshot.get("remap_failure"):
        findings.append(_failure("remap_failure", "A memory row could not be remapped.", Action.REPLACE))
    if snapshot.get("remap_pending"):
        findings.append(
            _failure(
                "remap_pending", "A row remapping is pending until the GPU is reset.", Action.DRAIN_AND_RESET
            )
        )
    if snapshot.get("retired_pending"):
        findings.append(
            _failure(
                "retired_pending",
                "A page retirement is pending until the GPU is reset.",
                Action.DRAIN_AND_RESET,
            )
        )
    if snapshot.get("sram_threshold_exceeded"):
        findings.append(
            _failure("sram_threshold", "SRAM errors exceed the vendor's threshold.", Action.REPLACE)
        )
    requested_action = snapshot.get("recovery_action")
    if requested_action is not None and requested_action != "none":
        text = f"The driver requests a recovery action: {requested_action.replace('_', ' ')}."
        findings.append(_failure("recovery_action", text, _RECOVERY.get(requested_action, Action.INSPECT)))
    return findings


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Finding]:
    """Return increased counters and new faults between two snapshots."""
    findings = []
    for name, counter in (
        ("ecc_uncorrected", "volatile"),
        ("ecc_uncorrected_aggregate", "aggregate"),
    ):
        if grown := _growth(before, after, name):
            text = f"{grown} new uncorrectable ECC errors ({counter} counter)."
            findings.append(_failure(name, text, Action.DRAIN_AND_RESET))
    if grown := _growth(before, after, "remapped_uncorrected"):
        findings.append(
            _failure("remapped", f"{grown} memory rows failed and were remapped.", Action.DRAIN_AND_RESET)
        )
    if (grown := _growth(before, after, "ecc_corrected")) > CORRECTED_WARN:
        text = f"{grown} ECC errors were corrected during the check."
        findings.append(Finding("ecc_corrected", Severity.DEGRADED, text, Action.INSPECT))
    if (grown := _growth(before, after, "pcie_replays", NARROW)) > REPLAYS_WARN:
        text = f"The PCIe link replayed {grown} packets."
        findings.append(Finding("pcie_replays", Severity.DEGRADED, text, Action.INSPECT))
    links = {link["link"]: link for link in before.get("nvlinks") or ()}
    for link in after.get("nvlinks") or ():
        earlier = links.get(link["link"])
        if earlier is None:
            continue
        if earlier["active"] and not link["active"]:
            findings.append(_failure("nvlink_down", f"NVLink {link['link']} went down.", Action.RESET))
        if grown := _growth(earlier, link, "errors"):
            text = f"NVLink {link['link']} counted {grown} errors."
            findings.append(Finding("nvlink_errors", Severity.DEGRADED, text, Action.INSPECT))
    return findings


def xids(numbers: Iterable[int]) -> list[Finding]:
    """Return findings for the XIDs of the run, each once."""
    findings = []
    for xid in sorted(set(numbers)):
        if xid in XID_FAIL:
            cause, action = XID_FAIL[xid]
            findings.append(_failure(f"xid_{xid}", f"XID {xid}: {cause}.", action))
        elif xid in XID_RETRY:
            text = f"XID {xid}: a contained memory error stopped the check. Run the check again."
            findings.append(Finding(f"xid_{xid}", Severity.INCONCLUSIVE, text, Action.RETRY))
        elif xid in XID_IGNORED:
            findings.append(Finding(f"xid_{xid}", Severity.INFO, f"XID {xid}: caused by an application."))
        elif xid in XID_DEGRADED:
            text = f"XID {xid}: {XID_DEGRADED[xid]}."
            findings.append(Finding(f"xid_{xid}", Severity.DEGRADED, text, Action.INSPECT))
        else:
            text = f"XID {xid}: unknown to this check. Look it up in NVIDIA's XID catalog."
            findings.append(Finding(f"xid_{xid}", Severity.DEGRADED, text, Action.INSPECT))
    return findings


def throttling(samples: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return how often clocks were throttled, and why. Samples without the value are ignored."""
    reasons = [s["throttle"] for s in samples if s.get("throttle") is not None]
    findings = []
    for code, mask, cause in (
        ("thermal_throttling", THROTTLE_THERMAL, "heat"),
        ("power_brake", THROTTLE_POWER_BRAKE, "the power brake"),
    ):
        share = sum(1 for r in reasons if r & mask) / len(reasons) if reasons else 0.0
        if share > THROTTLE_FAIL:
            text = f"Clocks were throttled by {cause} in {share:.0%} of the samples."
            findings.append(_failure(code, text, Action.INSPECT))
        elif share > 0:
            findings.append(
                Finding(
                    code, Severity.INFO, f"Clocks were throttled by {cause} in {share:.0%} of the samples."
                )
            )
    if any(r & THROTTLE_POWER_CAP for r in reasons):
        findings.append(Finding("power_cap", Severity.INFO, "The software power cap was reached."))
    return findings


def foreign_processes(processes: Sequence[Mapping[str, Any]] | None, own: int | None = None) -> list[Finding]:
    """Return a finding for processes other than the check's own (`own` None: it has none yet).

    In a container NVML's PIDs belong to another namespace. So one process counts as the check's own if its
    PID is not in the list.
    """
    pids = [int(p["pid"]) for p in processes or ()]
    allowed = 0 if own is None else 1
    if len(pids) <= allowed:
        return []
    others = [pid for pid in pids if pid != own]
    text = f"Other processes use the device: {', '.join(map(str, sorted(others)[:8]))}."
    return [Finding("busy", Severity.INCONCLUSIVE, text, Action.RETRY)]
