"""State of a device before any load: errors since its last reset, links down, lowered limits. Pure functions.

A lowered clock or power limit is a deliberate setting. It is reported, but values that are low because of it
do not fail the device. Neither do persistence mode or another loaded driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioning.gpu.check.thresholds import LINKS_UP, RETIRED
from provisioning.gpu.check.types import Action, Finding, Severity, Status, TestResult

LOWERED = frozenset({"clocks_lowered", "power_lowered"})
PERSISTENCE = (
    "Persistence mode is off, so the driver unloads the idle GPU, and the next start takes longer. "
    "Enable the mode (nvidia-smi -pm 1), or start nvidia-persistenced."
)
ECC_OFF = (
    "ECC is off, although it is on by default, so memory errors go undetected. "
    "Enable ECC (nvidia-smi -e 1), then reset the GPU."
)
NOUVEAU_BESIDES = (
    "The nouveau driver is loaded beside NVIDIA's driver and may take a GPU after the next reboot. "
    "Add “blacklist nouveau” to /etc/modprobe.d/nouveau.conf."
)
DRAWING = (
    "Graphics programs (process %s) use memory and time of this GPU. "
    "Move the display to another GPU, or stop it."
)
VOLTA = (7, 0)
DATA_CENTER_BLACKWELL = 10
NAMED = 8
"""Maximum number of processes to name."""


@dataclass(frozen=True, slots=True)
class MemoryState:
    """State that the free memory depends on: only values of the same `metric` are compared.

    `display`: a display or drawing program uses the memory; `holders` names its processes, if listed.
    """

    metric: str
    display: bool = False
    holders: str = ""


_CLOCKS = (("sm", "SM"), ("memory", "memory"))


def before_load(snapshot: Mapping[str, Any], last: Mapping[str, float] | None = None) -> list[Finding]:
    """Return findings of the first snapshot beyond those of `health.state`.

    `last` has `own_figures` of the device's last check that did not fail, if known.
    """
    last = last or {}
    return [
        *_errors(snapshot),
        *_board(snapshot),
        *_retired_memory(snapshot, last.get(RETIRED)),
        *_links(snapshot, last.get(LINKS_UP)),
        *_limits(snapshot),
    ]


def own_figures(snapshot: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that are compared with the same device's last check, by name."""
    figures = {LINKS_UP: links_up(snapshot), RETIRED: snapshot.get("retired")}
    return {name: float(value) for name, value in figures.items() if value is not None}


def links_up(snapshot: Mapping[str, Any]) -> int | None:
    """Return the number of active NVLinks; None without NVLinks, or in MIG mode, which does not use them."""
    links = snapshot.get("nvlinks")
    if not links or snapshot.get("mig_mode"):
        return None
    return sum(1 for link in links if link["active"])


def _errors(snapshot: Mapping[str, Any]) -> list[Finding]:
    count = snapshot.get("ecc_uncorrected")
    if not count:
        return []
    text = f"{count} uncorrectable ECC errors since the last reset. Reset the GPU before use."
    return [Finding("ecc_standing", Severity.FAIL, text, Action.DRAIN_AND_RESET)]


def _board(snapshot: Mapping[str, Any]) -> list[Finding]:
    """Check the inforom and driver settings. A missing value is not a finding."""
    findings = []
    if snapshot.get("inforom_valid") is False:
        version = snapshot.get("inforom_version")
        text = (
            f"The InfoROM{f' {version}' if version else ''} is corrupt, so stored data, such as "
            "remapped memory rows, may be lost. Flash the InfoROM with the vendor's tool, or replace the GPU."
        )
        findings.append(Finding("inforom", Severity.FAIL, text, Action.INSPECT))
    if snapshot.get("ecc") is False and snapshot.get("ecc_default"):
        findings.append(Finding("ecc_off", Severity.DEGRADED, ECC_OFF, Action.INSPECT))
    if snapshot.get("persistence") is False:
        findings.append(Finding("persistence_off", Severity.INFO, PERSISTENCE))
    if snapshot.get("nouveau"):
        findings.append(Finding("nouveau", Severity.INFO, NOUVEAU_BESIDES))
    if drawing := snapshot.get("drawing"):
        pids = ", ".join(map(str, sorted(process["pid"] for process in drawing)[:NAMED]))
        findings.append(Finding("drawing", Severity.INFO, DRAWING % pids))
    return findings


def _retired_memory(snapshot: Mapping[str, Any], before: float | None) -> list[Finding]:
    """Check for memory that was taken out of use since the last check: pages, or rows that were remapped."""
    now = snapshot.get("retired")
    if now is None or before is None or now <= before:
        return []
    text = f"{now - before:.0f} more memory pages or rows retired since the last check ({now} in total)."
    return [Finding("retired_memory", Severity.DEGRADED, text, Action.INSPECT)]


def memory_state(ecc: bool | None, snapshots: Sequence[Mapping[str, Any] | None]) -> MemoryState:
    """Return the state that the free memory depends on, from the snapshots before and after a run."""
    existing = [snapshot for snapshot in snapshots if snapshot is not None]
    memory_by_pid = {
        int(process["pid"]): process["memory_mib"]
        for shot in existing
        for process in shot.get("drawing") or ()
    }
    display = bool(memory_by_pid) or any(shot.get("display_active") for shot in existing)
    mode = {True: "ecc", False: "no_ecc", None: "ecc_unknown"}[ecc]
    holders = ", ".join(
        f"process {pid}" + ("" if memory is None else f" ({memory} MiB)")
        for pid, memory in sorted(memory_by_pid.items())[:NAMED]
    )
    return MemoryState(f"free_mib:{mode}{':display' if display else ''}", display, holders)


def _links(snapshot: Mapping[str, Any], before: float | None) -> list[Finding]:
    """Check for links that are down from the start.

    At least as many links must be up as on a device at the same switches or bridge, and as in the last check.
    If neither is known, no number is expected, because a device without a bridge has no link up. All links
    to a switch should be up. A device that lost all links may have lost its bridge on purpose.
    """
    up = links_up(snapshot)
    if up is None:
        return []
    partners = snapshot.get("nvlinks_of_partners")
    if partners is not None and up < partners:
        text = (
            f"{up} NVLinks are up, but {partners} are up on another {snapshot.get('model') or 'device'} at "
            "the same switches or bridge."
        )
        return [Finding("nvlink_missing", Severity.FAIL, text, Action.RESET)]
    if before is not None and 0 < up < before:
        text = (
            f"{up} NVLinks are up, but {before:.0f} were up in the last check. Reset the GPU and check its "
            "bridges. If bridges were removed on purpose, uncordon the GPU."
        )
        return [Finding("nvlink_missing", Severity.FAIL, text, Action.RESET)]
    if before and not up:
        text = (
            f"No NVLinks are up; the last check found {before:.0f}. "
            "Check the bridge, unless the bridge was removed on purpose."
        )
        return [Finding("nvlink_missing", Severity.DEGRADED, text, Action.INSPECT)]
    links = snapshot["nvlinks"]
    if snapshot.get("nvlinks_switched") and up < len(links):
        text = f"{up} of {len(links)} NVLinks to the switches are up."
        return [Finding("nvlink_missing", Severity.DEGRADED, text, Action.INSPECT)]
    return []


def _limits(snapshot: Mapping[str, Any]) -> list[Finding]:
    findings = []
    low = []
    for name, label in _CLOCKS:
        now, default = snapshot.get(f"app_{name}_clock_mhz"), snapshot.get(f"default_{name}_clock_mhz")
        if now is not None and default is not None and now < default:
            low.append(f"{label} {now} of {default} MHz")
    if low:
        text = f"Application clocks are below the default: {', '.join(low)}. Reset them: nvidia-smi -rac."
        findings.append(Finding("clocks_lowered", Severity.DEGRADED, text, Action.INSPECT))
    default = snapshot.get("power_limit_default_mw")
    # The enforced limit can be lower than the one set on the node, for example by the chassis.
    limits = [snapshot.get(name) for name in ("power_limit_set_mw", "power_limit_mw")]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is not None and default is not None and limit < default:
        watts = default // 1000
        text = (
            f"The power limit is below the default: {limit // 1000} of {watts} W. "
            f"Reset the limit: nvidia-smi -pl {watts}."
        )
        findings.append(Finding("power_lowered", Severity.INFO, text))
    return findings


def untested_findings(capability: tuple[int, int] | None) -> list[Finding]:
    """Return a finding if the device has circuits that no test uses."""
    if capability == VOLTA:
        text = "The tensor cores are not tested, because the check has no kernels for Volta."
        return [Finding("tensor_cores_untested", Severity.DEGRADED, text, Action.INSPECT)]
    if capability is not None and capability[0] == DATA_CENTER_BLACKWELL:
        text = "FP4 is not tested, because the check has no FP4 kernel for this architecture."
        return [Finding("fp4_untested", Severity.INFO, text)]
    return []


def excuse_lowered_limits(tests: Sequence[TestResult], findings: Sequence[Finding]) -> tuple[TestResult, ...]:
    """Return the tests; with lowered limits, a value below its floor is only a warning."""
    if not any(finding.code in LOWERED for finding in findings):
        return tuple(tests)
    return tuple(_with_lowered_limits(test) for test in tests)


def _with_lowered_limits(test: TestResult) -> TestResult:
    figures = any(judgement.status == Status.FAILED for judgement in test.judgements)
    if test.status != Status.FAILED or test.errors or not figures:
        return test
    text = f"{test.text}; clocks or power limit are below the default"
    return replace(test, status=Status.WARNED, text=text)
