"""Output of `berth node try-suspend`, `suspend` and `resume`, over a fake driver or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioning.drivers.local.suspending import SuspendProblem
from provisioning.gpu.suspend import grant, trial
from provisioning.host import suspending
from provisioning.host.folder import NodeFolder
from tests.gpu.suspend import conftest as stand_in
from tests.gpu.suspend.conftest import GPU_A, FakeDriver
from tests.host.conftest import Berth

driver, fake_library = stand_in.driver, stand_in.fake_library
WORKSPACE = "0f0e0d0c-0000-4000-8000-000000000001"


def test_trial_with_a_simulated_driver_grants_nothing(
    berth: Berth,
    folder: NodeFolder,
    driver: FakeDriver,
) -> None:
    done = berth("try-suspend")
    assert done.code != 0 and "not granted" in done.out
    assert "simulated NVIDIA driver" in done.err
    kept = grant.load(folder.local)
    assert kept is not None and kept.simulated and kept.problem == ""


def test_successful_trial_prints_its_result(
    berth: Berth,
    folder: NodeFolder,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grant, "refusal", lambda *_, **__: "")
    done = berth("try-suspend", "--device", GPU_A, "--json")
    assert done.code == 0
    assert json.loads(done.out)["uuid"] == GPU_A
    assert "Suspended in" in berth("try-suspend").out


def test_missing_driver_is_reported(berth: Berth, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    done = berth("try-suspend")
    assert done.code != 0 and "The NVIDIA driver is not installed on this machine" in done.err


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_workspace_not_on_this_machine_is_reported(berth: Berth, verb: str) -> None:
    assert "is not a workspace ID" in berth(verb, "mine").err
    done = berth(verb, WORKSPACE)
    assert done.code != 0 and "does not run on this machine" in done.err


def test_every_refusal_has_a_message() -> None:
    refusals = {grant.NOT_TRIED, grant.FAILED, grant.SIMULATED, grant.OTHER_MACHINE, grant.OTHER_DRIVER}
    assert set(suspending._GRANT) == refusals | {grant.NO_KERNEL_MODULE}
    assert set(suspending._WHY) == set(SuspendProblem) - {SuspendProblem.NOT_GRANTED, SuspendProblem.NO_ROOM}
    codes = {value for name, value in vars(trial).items() if name.isupper() and isinstance(value, str)}
    assert set(suspending._TRIAL) == codes
