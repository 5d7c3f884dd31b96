"""Consequences of XIDs between checks."""

from __future__ import annotations

import pytest

from provisioning.gpu.check.consequences import of_xid
from provisioning.gpu.check.types import Action


@pytest.mark.parametrize(
    ("xid", "action", "text"),
    [
        pytest.param(79, Action.REBOOT, "XID 79: the device has fallen off the bus.", id="of the device"),
        pytest.param(94, Action.DRAIN_AND_RESET, "XID 94: ", id="contained"),
        pytest.param(154, Action.INSPECT, "XID 154: ", id="the driver asks"),
    ],
)
def test_meanings_of_xids(xid: int, action: Action, text: str) -> None:
    finding = of_xid(xid)
    assert finding is not None and finding.action == action and finding.text.startswith(text)


@pytest.mark.parametrize("xid", range(143, 152))
def test_fatal_nvlink_error_fails_the_device(xid: int) -> None:
    line = f"NVRM: Xid (PCI:0000:3b:00): {xid}, NETIR_LINK_EVT %s XC1 i0 Link 08 (0x004505c6 0x00000000)"
    found = of_xid(xid, line % "Fatal")
    if 144 <= xid <= 150:
        assert found is not None
        assert (found.action, found.text) == (Action.RESET, f"XID {xid}: fatal NVLink error.")
        assert of_xid(xid, line % "Nonfatal") is None and of_xid(xid) is None
    else:
        assert found is None or "NVLink" not in found.text


@pytest.mark.parametrize(
    ("xid", "action"),
    [
        (46, Action.RESET), (61, Action.INSPECT), (110, Action.RESET), (121, None), (123, Action.INSPECT),
        (171, Action.DRAIN_AND_RESET), (172, Action.DRAIN_AND_RESET), (160, None),
        (62, Action.RESET), (63, Action.DRAIN_AND_RESET), (92, Action.INSPECT),
    ],
)  # fmt: skip
def test_xid_catalog_between_checks(xid: int, action: Action | None) -> None:
    found = of_xid(xid)
    assert (found.action if found is not None else None) == action


def test_unknown_xid_fails_no_device() -> None:
    assert of_xid(5) is None


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_application_xids_never_fail_a_device(xid: int) -> None:
    assert of_xid(xid, f"NVRM: Xid (PCI:0000:3b:00): {xid}, recovery action changed from 0x0 to 0x1") is None


@pytest.mark.parametrize(
    ("number", "action"),
    [
        ("0", None), ("1", Action.RESET), ("2", Action.REBOOT), ("3", Action.DRAIN_AND_RESET),
        ("4", Action.DRAIN_AND_RESET), ("5", None), ("6", Action.RESET), ("7", Action.REBOOT),
        ("05", None), ("00000002", Action.REBOOT), ("8", Action.INSPECT), ("ff", Action.INSPECT),
    ],
)  # fmt: skip
def test_actions_requested_by_the_driver(number: str, action: Action | None) -> None:
    line = (
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) "
        f"to 0x{number} (Some Words)"
    )
    found = of_xid(154, line)
    assert (found.action if found is not None else None) == action
    assert found is None or found.text == "XID 154: the driver requests a recovery action."
