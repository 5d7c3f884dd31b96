"""The program by which a disconnected node stops its workspaces, with the real local driver."""

from __future__ import annotations

import os

import pytest

from provisioning.host import ending
from provisioning.types import ObservedState


@pytest.mark.parametrize("harness", ["local"], indirect=True)
def test_all_workspaces_end_and_homes_are_kept(harness):
    good, stubborn = harness.spec("good"), harness.spec("stubborn")
    for spec in (good, stubborn):
        harness.start(spec)
    (harness.home(good) / "kept.txt").write_text("mine")
    environ = {
        **os.environ,
        "BERTH_HOME": str(harness.tmp / "berth"),
        "BERTH_NODE_ENVIRONMENT": str(harness.environment),
        "BERTH_NODE_POOL": harness.driver.pool.slug,
    }
    assert ending.end_all(environ) == 0
    for spec in (good, stubborn):
        assert harness.driver.observe(spec.ref).state in {ObservedState.STOPPED, ObservedState.ABSENT}
        assert not harness.running(spec)
    assert (harness.home(good) / "kept.txt").read_text() == "mine"
    assert ending.end_all(environ) == 0, "once more is no error"


def test_failing_program_is_an_error(monkeypatch):
    monkeypatch.setattr(ending.sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="could not be stopped"):
        ending.end_all({})
