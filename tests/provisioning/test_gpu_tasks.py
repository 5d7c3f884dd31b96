"""Checks and scrubs on the node plane: parallel to other work, once, limited, always answered."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest

from provisioning import messages
from provisioning.check_messages import CheckAnswer, CheckCommand
from provisioning.driver import Driver
from provisioning.drivers.simulated import faults, hardware
from provisioning.drivers.simulated.driver import SimulatedDriver
from provisioning.drivers.simulated.script import Topology
from provisioning.errors import BackendUnavailable
from provisioning.gpu.check import verdict as judging
from provisioning.gpu.check.report import schema
from provisioning.gpu.check.types import Progress, Verdict
from provisioning.gpu.reset import ResetResult, ResetVerdict
from provisioning.gpu.scrub import ScrubResult, ScrubVerdict
from provisioning.node import gpu_tasks
from provisioning.node.worker import app
from provisioning.registry import traits_of
from provisioning.simulation.settings import InvalidConfig
from provisioning.traits import DeviceChecks, Traits
from provisioning.types import PoolConfig
from tests.broker import Broker

CONFIG = PoolConfig("trial", "scripted", {})


class Scripted:
    """A driver with a scripted device; `hold` blocks a check."""

    checks_at_once = False

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.begun: list[str] = []
        self.error: Exception | None = None
        self.progress: list[Progress] = []
        self.peers: tuple[str, ...] = ()

    def check_device(self, uuid: str, level: str, *, on_progress: Any, **kwargs: Any) -> Any:
        self.begun.append(uuid)
        self.peers = kwargs["peers"]
        for each in self.progress:
            on_progress(each)
        assert self.hold.wait(20)
        if self.error is not None:
            raise self.error
        return faults.no_such_device(uuid, level, 1_800_000_000.0)

    def reset_device(self, uuid: str, *, bus: str, deadline_s: float) -> ResetResult:
        self.begun.append(bus)
        if self.error is not None:
            raise self.error
        return ResetResult(uuid, ResetVerdict.DONE, f"reset within {deadline_s:.0f} s")

    def scrub_device(self, uuid: str, **kwargs: Any) -> ScrubResult:
        self.begun.append(uuid)
        return ScrubResult(uuid, ScrubVerdict.CLEAN, "clean", baseline_mib=kwargs["baseline_mib"])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scripted:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    monkeypatch.setattr(gpu_tasks, "ALIVE_EVERY_S", 0.05)
    monkeypatch.setattr(gpu_tasks, "LOCK_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(gpu_tasks, "TRIES_S", (0.0, 0.01, 0.01))
    made = Scripted()
    made.hold.set()
    monkeypatch.setattr(gpu_tasks, "driver_for", lambda pool: made)
    return made


def command(**changes: Any) -> CheckCommand:
    fields: dict[str, Any] = {
        "kind": "check", "run": "r1", "lease": "a" * 32, "pool": CONFIG, "uuid": "GPU-1", "level": "quick",
        "expires_at": time.time() + 5, "deadline_s": 30.0,
    } | changes  # fmt: skip
    return CheckCommand(**fields)


def done(thread: threading.Thread | None) -> None:
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


def answers(sent: Broker) -> list[CheckAnswer]:
    return [messages.load(each.kwargs["answer"], CheckAnswer) for each in sent.of("control.apply_gpu_check")]


def test_check_continues_after_its_task_has_returned(driver: Scripted, sent: Broker) -> None:
    driver.hold.clear()
    thread = gpu_tasks.begin(command())
    assert thread is not None and thread.daemon
    assert thread.is_alive() and not answers(sent), "the worker has other work"
    driver.hold.set()
    done(thread)
    (answer,) = answers(sent)
    assert (answer.run, answer.lease, answer.uuid, answer.failure) == ("r1", "a" * 32, "GPU-1", None)
    assert answer.report is not None and answer.report["schema"] == "berth.gpu-check/1"
    assert sent.of("control.apply_gpu_check")[0].queue == "control"


def test_peers_are_named_to_the_driver(driver: Scripted, sent: Broker) -> None:
    done(gpu_tasks.begin(command(peers=("GPU-2", "GPU-3"))))
    assert driver.peers == ("GPU-2", "GPU-3")


def test_tasks_accept_commands_of_the_control_plane(driver: Scripted, sent: Broker) -> None:
    for kind in ("check", "scrub"):
        task = app.tasks[f"node.gpu_{kind}"]
        task.run(command=messages.dump(command(kind=kind, lease=kind * 6, baseline_mib=77)))
    until = time.monotonic() + 10
    while len(answers(sent)) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    found = {answer.kind: answer.report for answer in answers(sent)}
    assert found["scrub"] is not None and found["scrub"]["baseline_mib"] == 77
    assert found["check"] is not None


def test_reset_is_answered_on_success_and_failure(driver: Scripted, sent: Broker) -> None:
    assert "node.gpu_reset" in app.tasks
    done(gpu_tasks.begin(command(kind="reset", bus="0000:1b:00.0")))
    driver.error = BackendUnavailable("Away.")
    done(gpu_tasks.begin(command(kind="reset", lease="b" * 32)))
    first, second = answers(sent)
    assert messages.load(first.report, ResetResult).text == "reset within 30 s"
    assert second.failure is not None and driver.begun[0] == "0000:1b:00.0"


def test_late_command_is_not_started(driver: Scripted, sent: Broker) -> None:
    assert gpu_tasks.begin(command(expires_at=time.time() - 1)) is None
    assert not driver.begun and len(sent) == 0


def test_repeated_command_twice_runs_once(driver: Scripted, sent: Broker) -> None:
    driver.hold.clear()
    first = gpu_tasks.begin(command())
    while not driver.begun:
        time.sleep(0.005)
    second = gpu_tasks.begin(command())
    driver.hold.set()
    done(first)
    done(second)
    done(gpu_tasks.begin(command()))
    assert driver.begun == ["GPU-1"]
    assert len(answers(sent)) == 1
    done(gpu_tasks.begin(command(lease="b" * 32)))
    assert len(driver.begun) == 2


def test_one_run_per_device_and_several_per_node(driver: Scripted, sent: Broker) -> None:
    driver.hold.clear()
    first = gpu_tasks.begin(command())
    other = gpu_tasks.begin(command(uuid="GPU-2", lease="b" * 32))
    while len(driver.begun) < 2:
        time.sleep(0.005)
    done(gpu_tasks.begin(command(lease="c" * 32, expires_at=time.time() + 1)))
    assert sorted(driver.begun) == ["GPU-1", "GPU-2"]
    driver.hold.set()
    done(first)
    done(other)
    assert len(answers(sent)) == 2


@pytest.mark.parametrize("error", [BackendUnavailable("The node is tired."), ValueError("odd")])
def test_any_error_is_answered_as_a_failure(driver: Scripted, sent: Broker, error: Exception) -> None:
    driver.error = error
    done(gpu_tasks.begin(command()))
    (answer,) = answers(sent)
    assert answer.report is None and answer.failure is not None
    assert answer.failure.code == "backend_unavailable"


def test_invalid_driver_is_answered_as_a_failure(driver: Scripted, sent: Broker, monkeypatch: Any) -> None:
    def fail(pool: PoolConfig) -> Driver:
        raise InvalidConfig("No such setting.")

    monkeypatch.setattr(gpu_tasks, "driver_for", fail)
    assert gpu_tasks.begin(command()) is None
    (answer,) = answers(sent)
    assert answer.failure is not None and answer.failure.message == "No such setting."


def test_check_past_its_deadline_is_reported_as_hung(
    driver: Scripted, sent: Broker, monkeypatch: Any
) -> None:
    monkeypatch.setattr(gpu_tasks, "SLACK_S", 0.1)
    driver.hold.clear()
    done(gpu_tasks.begin(command(deadline_s=0.1)))
    (answer,) = answers(sent)
    assert answer.failure is not None and answer.failure.code == "hung"
    driver.hold.set()


def test_progress_is_throttled_but_sent_during_silence(
    driver: Scripted, sent: Broker, monkeypatch: Any
) -> None:
    driver.progress = [Progress("start", f"test-{n}", n, 50) for n in range(50)]
    monkeypatch.setattr(gpu_tasks, "ALIVE_EVERY_S", 1.02)
    monkeypatch.setattr(gpu_tasks, "SLACK_S", 2.0)
    driver.hold.clear()
    thread = gpu_tasks.begin(command(deadline_s=0.1))
    done(thread)
    told = [each.kwargs for each in sent.of("control.gpu_check_progress")]
    assert 2 <= len(told) <= 4, "fifty steps at once are one or two messages, and then it says that it lives"
    assert {each["lease"] for each in told} == {"a" * 32}
    assert told[-1]["progress"]["test"] == "test-49"
    driver.hold.set()


def test_verdict_is_sent_again_after_a_broker_outage(
    driver: Scripted, sent: Broker, monkeypatch: Any
) -> None:
    real, tries = sent.send_task, []

    def shaky(name: str, *args: Any, **kwargs: Any) -> None:
        if name == "control.apply_gpu_check":
            tries.append(name)
            if len(tries) < 3:
                raise ConnectionError("away")
        real(name, *args, **kwargs)

    monkeypatch.setattr(app, "send_task", shaky)
    done(gpu_tasks.begin(command()))
    assert len(tries) == 3
    assert len(answers(sent)) == 1
    sent.away = True
    done(gpu_tasks.begin(command(lease="z" * 32)))


def test_unusable_lock_folder_is_answered_as_a_failure(
    driver: Scripted, sent: Broker, monkeypatch: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "file"))
    done(gpu_tasks.begin(command()))
    (answer,) = answers(sent)
    assert answer.failure is not None


class Far(Driver):
    """A pool with devices behind the API of an engine."""

    name: ClassVar[str] = "far"
    traits: ClassVar[Traits] = replace(traits_of("local"), device_checks=DeviceChecks.NONE)


Far.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def test_driver_of_remote_devices_reports_checks_as_unsupported(
    driver: Scripted, sent: Broker, monkeypatch: Any
) -> None:
    monkeypatch.setattr(gpu_tasks, "driver_for", Far)
    for kind in ("check", "scrub", "reset"):
        done(gpu_tasks.begin(command(kind=kind, lease=kind * 6)))
    assert len(answers(sent)) == 3
    for answer in answers(sent):
        assert answer.failure is not None
        assert (answer.failure.code, answer.failure.retryable) == ("missing_dependency", False)


class Near(Far):
    traits = traits_of("local")


def test_missing_vendor_tool_is_reported(
    driver: Scripted, sent: Broker, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_tasks, "driver_for", Near)
    monkeypatch.setenv("PATH", str(tmp_path))
    done(gpu_tasks.begin(command(kind="reset")))
    (answer,) = answers(sent)
    told = messages.load(answer.report, ResetResult)
    assert told.verdict is ResetVerdict.REFUSED and "nvidia-smi is not in" in told.text


# --- simulated devices ----------------------------------------------------------------------------

ALL = {kind: f"sim-001:{n}" for n, kind in enumerate(("ecc", "xid79", "hang", "slow_memory", "leak"))}


def simulated(tmp_path: Path, clock: Any = time.time, **config: Any) -> SimulatedDriver:
    settings = {"state": str(tmp_path / "sim"), "nodes": 1, "gpus": 8} | config
    return SimulatedDriver(PoolConfig("trial", "simulated", settings), clock=clock, sleep=lambda s: None)


def gpu(index: int, node: str = "sim-001") -> str:
    return hardware.device_uuid("trial", node, index)


@pytest.mark.parametrize("model", ["H100", "A100", "T4", "L4", "V100", "B200", "RTX-4090", "MI300X"])
def test_simulated_reports_follow_check_rules_and_never_pass(tmp_path: Path, model: str) -> None:
    driver = simulated(tmp_path, model=model, **{f"fault_{kind}": name for kind, name in ALL.items()})
    # Some V100 speeds have no floor.
    healthy = "degraded" if model == "V100" else "pass"
    expected = ["fail", "fail", "hung", "degraded", "fail", healthy]
    for level in ("quick", "standard"):
        for index, would_be in enumerate(expected):
            report = driver.check_device(gpu(index), level)
            jsonschema.Draft202012Validator(schema()).validate(report.to_dict())
            assert report.simulated and report.summary.startswith("Simulated")
            assert report.verdict not in ("pass", "degraded")
            assert report.facts is not None and report.facts.name == f"Simulated {model}"
            assert judging.decide(report.findings, report.tests, simulated=False)[0] == would_be
    xids = driver.check_device(gpu(1), "quick").xids
    assert xids == (79,)


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [("", "clean"), ("leak", "leak"), ("xid79", "failed"), ("hang", "hung"), ("vanish", "unavailable")],
)
@pytest.mark.parametrize("baseline", [None, 80_959])
def test_simulated_devices_are_scrubbed(
    tmp_path: Path, fault: str, verdict: str, baseline: int | None
) -> None:
    driver = simulated(tmp_path, **({f"fault_{fault}": "sim-001:0"} if fault else {}))
    result = driver.scrub_device(gpu(0), baseline_mib=baseline)
    assert (result.verdict, result.simulated, result.ok) == (ScrubVerdict(verdict), True, False)


def test_simulated_faults_begin_and_end_by_time(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    driver = simulated(
        tmp_path, lambda: now[0], fault_vanish="sim-001:3", fault_from_s=10, fault_for_s="20", check_s=0
    )
    seen = []
    for _ in range(5):
        seen.append(len(driver.inventory().nodes[0].devices))
        now[0] += 8
    assert seen == [8, 8, 7, 7, 8]
    assert driver.check_device(gpu(3), "quick").unavailable is None


def test_missing_device_is_not_found(tmp_path: Path) -> None:
    driver = simulated(tmp_path, fault_vanish="sim-001:3, sim-001:4")
    assert [device.index for device in driver.inventory().nodes[0].devices] == [0, 1, 2, 5, 6, 7]
    report = driver.check_device(gpu(3), "quick")
    assert report.exit_code == 4 and report.unavailable is not None
    assert driver.check_device("SIM-GPU-none", "quick").exit_code == 4


def test_simulated_check_takes_the_configured_time_and_reports_progress(tmp_path: Path) -> None:
    assert simulated(tmp_path).checks_at_once
    slept: list[float] = []
    config = {"state": str(tmp_path / "sim"), "nodes": 1, "gpus": 1, "check_s": 11}
    driver = SimulatedDriver(PoolConfig("trial", "simulated", config), sleep=slept.append)
    told: list[Progress] = []
    report = driver.check_device(gpu(0), "quick", on_progress=told.append)
    assert not driver.checks_at_once
    assert sum(slept) == pytest.approx(11)
    assert [each.test for each in told if each.phase == "start"] == [test.name for test in report.tests]
    assert (told[0].phase, told[-1].phase) == ("prepare", "end")


def test_simulated_reset_is_marked_and_resets_no_gpu(tmp_path: Path) -> None:
    driver = simulated(tmp_path, fault_ecc="sim-001:0")
    done = driver.reset_device(gpu(0))
    assert (done.verdict, done.simulated) == (ResetVerdict.DONE, True) and "no GPU was reset" in done.text
    assert driver.check_device(gpu(0), "quick").verdict is Verdict.FAIL, "what is scripted stays"
    assert driver.reset_device("SIM-GPU-none").verdict is ResetVerdict.REFUSED


@pytest.mark.parametrize("value", ["sim-001", "0", "sim-001:x", "sim-001:1;sim-001:2", True])
def test_invalid_fault_setting_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidConfig, match="fault_ecc"):
        simulated(tmp_path, fault_ecc=value)


def test_position_of_a_device_is_found_by_its_uuid() -> None:
    topology = Topology(nodes=2, gpus=2)
    assert hardware.place_of("p", topology, hardware.device_uuid("p", "sim-002", 1)) == ("sim-002", 1)
    assert hardware.place_of("p", topology, hardware.device_uuid("p", "sim-003", 1)) is None
