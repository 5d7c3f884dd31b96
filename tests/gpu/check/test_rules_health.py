"""Findings of health: every counter and state, at its limit."""

from __future__ import annotations

from typing import Any

import pytest

from provisioning.gpu.check import health
from provisioning.gpu.check.types import (
    Action,
    Severity,
)
from tests.gpu.check.judging import found

CLEAN: dict[str, Any] = {
    "ecc_uncorrected": 0, "ecc_uncorrected_aggregate": 3, "ecc_corrected": 10, "remapped_uncorrected": 1,
    "remap_failure": False, "remap_pending": False, "retired_pending": None, "sram_threshold_exceeded": False,
    "recovery_action": "none", "pcie_replays": 5, "nvlinks": [{"link": 0, "active": True, "errors": 4}],
}  # fmt: skip


def test_healthy_device_has_no_findings() -> None:
    assert health.state(CLEAN) == []
    assert health.changes(CLEAN, CLEAN) == []
    assert health.state({}) == []
    assert health.changes({}, {}) == []


@pytest.mark.parametrize(
    ("name", "value", "code", "action"),
    [
        ("remap_failure", True, "remap_failure", Action.REPLACE),
        ("remap_pending", True, "remap_pending", Action.DRAIN_AND_RESET),
        ("retired_pending", True, "retired_pending", Action.DRAIN_AND_RESET),
        ("sram_threshold_exceeded", True, "sram_threshold", Action.REPLACE),
        ("recovery_action", "gpu_reset", "recovery_action", Action.RESET),
        ("recovery_action", "bus_reset", "recovery_action", Action.RESET),
        ("recovery_action", "drain_p2p", "recovery_action", Action.DRAIN_AND_RESET),
        ("recovery_action", "drain_and_reset", "recovery_action", Action.DRAIN_AND_RESET),
        ("recovery_action", "node_reboot", "recovery_action", Action.REBOOT),
        ("recovery_action", "system_reboot", "recovery_action", Action.REBOOT),
        ("recovery_action", "action_99", "recovery_action", Action.INSPECT),
    ],
)
def test_failing_states(name: str, value: Any, code: str, action: Action) -> None:
    assert found(health.state({**CLEAN, name: value})) == [(code, Severity.FAIL, action)]


@pytest.mark.parametrize(
    ("name", "by", "severity", "action"),
    [
        ("ecc_uncorrected", 1, Severity.FAIL, Action.DRAIN_AND_RESET),
        ("ecc_uncorrected_aggregate", 1, Severity.FAIL, Action.DRAIN_AND_RESET),
        ("remapped_uncorrected", 1, Severity.FAIL, Action.DRAIN_AND_RESET),
        ("ecc_corrected", 65, Severity.DEGRADED, Action.INSPECT),
        ("pcie_replays", 9, Severity.DEGRADED, Action.INSPECT),
    ],
)
def test_growing_counters(name: str, by: int, severity: Severity, action: Action) -> None:
    after = {**CLEAN, name: CLEAN[name] + by}
    assert [(f.severity, f.action) for f in health.changes(CLEAN, after)] == [(severity, action)]
    assert str(by) in health.changes(CLEAN, after)[0].text
    # Missing values are no growth, and a restarted counter counts from 0.
    assert health.changes({**CLEAN, name: None}, after) == []
    assert health.changes(after, {**CLEAN, name: None}) == []
    assert health.changes({**CLEAN, name: 1000}, {**CLEAN, name: by})[0].severity == severity


@pytest.mark.parametrize(("name", "by"), [("ecc_corrected", 64), ("pcie_replays", 8)])
def test_small_growth_is_ignored(name: str, by: int) -> None:
    assert health.changes(CLEAN, {**CLEAN, name: CLEAN[name] + by}) == []


def test_link_states_and_errors() -> None:
    def links(active: bool, errors: int | None, number: int = 0) -> dict[str, Any]:
        return {**CLEAN, "nvlinks": [{"link": number, "active": active, "errors": errors}]}

    assert found(health.changes(CLEAN, links(False, 4))) == [("nvlink_down", Severity.FAIL, Action.RESET)]
    assert found(health.changes(CLEAN, links(True, 5))) == [
        ("nvlink_errors", Severity.DEGRADED, Action.INSPECT)
    ]
    assert health.changes(links(False, 4), links(False, 4)) == []
    assert health.changes(links(False, 4), links(True, 4)) == []
    assert health.changes(CLEAN, links(False, 9, number=1)) == []
    assert health.changes(CLEAN, {**CLEAN, "nvlinks": None}) == []


@pytest.mark.parametrize(
    ("xid", "severity", "action"),
    [
        pytest.param(79, Severity.FAIL, Action.REBOOT, id="of the device"),
        pytest.param(94, Severity.INCONCLUSIVE, Action.RETRY, id="contained"),
        pytest.param(31, Severity.INFO, Action.NONE, id="of an application"),
        pytest.param(5, Severity.DEGRADED, Action.INSPECT, id="unknown"),
    ],
)
def test_each_xid_is_reported_once(xid: int, severity: Severity, action: Action) -> None:
    assert found(health.xids([xid, xid])) == [(f"xid_{xid}", severity, action)]


CATALOG = {
    **dict.fromkeys((46, 62, 74, 109, 110, 119, 120, 143, 155, 156, 158), (Severity.FAIL, Action.RESET)),
    **dict.fromkeys((48, 95, 140, 171, 172), (Severity.FAIL, Action.DRAIN_AND_RESET)),
    **dict.fromkeys((54, 61, 123), (Severity.FAIL, Action.INSPECT)),
    **dict.fromkeys((79, 136), (Severity.FAIL, Action.REBOOT)),
    64: (Severity.FAIL, Action.REPLACE),
    94: (Severity.INCONCLUSIVE, Action.RETRY),
    **dict.fromkeys((13, 31, 43, 45, 68), (Severity.INFO, Action.NONE)),
}


@pytest.mark.parametrize("xid", range(1, 180))
def test_every_xid_follows_the_catalog(xid: int) -> None:
    severity, action = CATALOG.get(xid, (Severity.DEGRADED, Action.INSPECT))
    assert found(health.xids([xid])) == [(f"xid_{xid}", severity, action)]
    named = xid in CATALOG or xid == 121 or 144 <= xid <= 150
    assert ("unknown to this check" in health.xids([xid])[0].text) is not named


def samples(bits: int, of: int = 10, total: int = 100) -> list[dict[str, Any]]:
    return [{"throttle": bits if i < of else 1} for i in range(total)] + [{"throttle": None}] * total


@pytest.mark.parametrize(
    ("bit", "code"), [(0x20, "thermal_throttling"), (0x40, "thermal_throttling"), (0x80, "power_brake")]
)
def test_throttling_above_10_percent_fails(bit: int, code: str) -> None:
    assert found(health.throttling(samples(bit, of=10))) == [(code, Severity.INFO, Action.NONE)]
    assert found(health.throttling(samples(bit, of=11))) == [(code, Severity.FAIL, Action.INSPECT)]
    assert found(health.throttling(samples(bit, of=101, total=1000)))[0][1] == Severity.FAIL
    assert health.throttling(samples(bit, of=0)) == []


def test_harmless_throttling_is_ignored() -> None:
    assert found(health.throttling(samples(0x04, of=100))) == [("power_cap", Severity.INFO, Action.NONE)]
    for other in (0x01, 0x02, 0x08, 0x10, 0x100):
        assert health.throttling(samples(other, of=100)) == []
    assert health.throttling([]) == []
    assert health.throttling([{}]) == []


def test_foreign_processes_make_it_inconclusive() -> None:
    assert health.foreign_processes(None) == []
    assert health.foreign_processes([]) == []
    assert found(health.foreign_processes([{"pid": 7}])) == [("busy", Severity.INCONCLUSIVE, Action.RETRY)]
    assert health.foreign_processes([{"pid": 7}], own=7) == []
    # In a container the check's process has another PID.
    assert health.foreign_processes([{"pid": 123}], own=7) == []
    (one,) = health.foreign_processes([{"pid": 7}, {"pid": 9}], own=7)
    assert one.text.endswith(": 9.")
    (many,) = health.foreign_processes([{"pid": n} for n in range(20)])
    assert many.text.endswith(": 0, 1, 2, 3, 4, 5, 6, 7.")
