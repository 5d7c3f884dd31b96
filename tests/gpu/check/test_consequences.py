"""What an XID between two checks means for its device."""

from __future__ import annotations

import pytest

from provisioning.gpu.check.consequences import of_xid
from provisioning.gpu.check.types import Action

ACTIONS = {
    48: Action.DRAIN_AND_RESET, 62: Action.RESET, 63: Action.DRAIN_AND_RESET, 64: Action.REPLACE,
    74: Action.RESET, 79: Action.REBOOT, 92: Action.INSPECT, 94: Action.DRAIN_AND_RESET,
    95: Action.DRAIN_AND_RESET, 109: Action.RESET, 119: Action.RESET, 120: Action.RESET, 136: Action.REBOOT,
    140: Action.DRAIN_AND_RESET, 143: Action.RESET, 154: Action.INSPECT, 158: Action.RESET,
}  # fmt: skip


def test_each_xid() -> None:
    for xid in range(260):
        finding = of_xid(xid)
        assert (finding.action if finding is not None else None) == ACTIONS.get(xid), f"XID {xid}"
        assert finding is None or finding.text.startswith(f"XID {xid}: ")


def test_it_is_said_what_the_xid_means() -> None:
    found = of_xid(79)
    assert found is not None and found.text == "XID 79: the device has fallen off the bus."


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_what_an_application_causes_never_speaks_against_a_device(xid: int) -> None:
    assert of_xid(xid, f"NVRM: Xid (PCI:0000:3b:00): {xid}, recovery action changed from 0x0 to 0x1") is None


@pytest.mark.parametrize(
    ("number", "action"),
    [
        ("0", None), ("1", Action.RESET), ("2", Action.REBOOT), ("3", Action.DRAIN_AND_RESET),
        ("4", Action.DRAIN_AND_RESET), ("5", None), ("6", Action.RESET), ("7", Action.REBOOT),
        ("05", None), ("00000002", Action.REBOOT), ("8", Action.INSPECT), ("ff", Action.INSPECT),
    ],
)  # fmt: skip
def test_what_the_driver_asks_for(number: str, action: Action | None) -> None:
    line = (
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) "
        f"to 0x{number} (Some Words)"
    )
    found = of_xid(154, line)
    assert (found.action if found is not None else None) == action
    assert found is None or found.text == "XID 154: the driver asks for a recovery."
