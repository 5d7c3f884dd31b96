"""Isolation that has worked in a process is not weakened by a probe that fails later."""

from __future__ import annotations

import pytest

from provisioning import workspace_uids
from provisioning.drivers.local import gvisor, isolation, network
from provisioning.drivers.local.isolation import SandboxProbe

TOOLS = network.NetworkTools("/usr/bin/pasta", "/usr/sbin/nft")
WORKS = SandboxProbe("/usr/bin/bwrap", disable_userns=True, network=TOOLS, seccomp_reason="No filter.")
SHORT = "Resource temporarily unavailable"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of root whose probes give the results that the test sets; each is retried at once."""
    results = {"sandbox": WORKS, "user": "", "runsc": ("/usr/bin/runsc", "")}
    monkeypatch.setattr(isolation, "_known", {})
    monkeypatch.setattr(isolation, "RETRY_AFTER_S", 0.0)
    monkeypatch.setattr(isolation.shutil, "which", lambda _: WORKS.bwrap)
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 0)
    monkeypatch.setattr(isolation, "_try", lambda _path, _base: results["sandbox"])
    monkeypatch.setattr(isolation, "_try_user", lambda *_: results["user"])
    monkeypatch.setattr(gvisor, "probe", lambda *_: results["runsc"])
    results["probe"] = lambda: isolation.probe(tmp_path)
    return results


def test_failing_retry_keeps_what_has_worked(machine):
    first = machine["probe"]()
    assert first.uids == workspace_uids.configured_range({}) and first.warning == "No filter."
    machine |= {"user": SHORT, "runsc": ("", SHORT)}
    machine["sandbox"] = SandboxProbe(WORKS.bwrap, network_reason=SHORT, seccomp="digest")
    second = machine["probe"]()
    assert (second.uids, second.network, second.disable_userns) == (first.uids, TOOLS, True)
    assert (second.gvisor, second.seccomp, second.warning) == (first.gvisor, "digest", "")


def test_sandbox_that_stops_working_is_not_given_up(machine):
    first = machine["probe"]()
    machine["sandbox"] = SandboxProbe("", reason=SHORT)
    assert machine["probe"]() == first


def test_what_never_worked_is_tried_again(machine):
    machine |= {"user": SHORT}
    assert machine["probe"]().uids is None
    machine |= {"user": ""}
    assert machine["probe"]().uids is not None
