"""Builds on the node plane: parallel to other work, once, limited, cancellable, always answered."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from provisioning import messages
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import (
    MAX_LOG,
    BuildFailure,
    BuildStage,
    EnvironmentBuilt,
    EnvironmentProgress,
)
from provisioning.environments.store import EnvironmentStamp
from provisioning.node import environment_tasks
from provisioning.node.worker import app
from tests.broker import Broker
from tests.provisioning.environments.package_index import PackageFolder, command

STAMP = EnvironmentStamp("0" * 32, "/place", "lock", "3.12", "3.12.1", (), 7, programs=("python3",))


class Scripted:
    """Replaces a build: logs `lines` and runs `work`."""

    lines: tuple[str, ...] = ("one", "two")
    hold = threading.Event()
    begun = 0
    error: Exception | None = None

    def __init__(self, command: Any, store: Any, machine: Any, **hooks: Any) -> None:
        self.hooks = hooks

    def run(self) -> EnvironmentStamp:
        type(self).begun += 1
        self.hooks["report"](BuildStage.DOWNLOADING, 1, 2)
        for line in self.lines:
            self.hooks["write"](line)
        while not self.hold.wait(0.01):
            if self.hooks["cancelled"]():
                raise BuildError(BuildFailure.CANCELLED, "The build was cancelled.")
        if self.error is not None:
            raise self.error
        return STAMP


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Scripted]:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    monkeypatch.setattr(environment_tasks, "PROGRESS_EVERY_S", 0.02)
    monkeypatch.setattr(environment_tasks, "ALIVE_EVERY_S", 1.05)
    monkeypatch.setattr(environment_tasks, "TRIES_S", (0.0, 0.01, 0.01))
    made = type("Made", (Scripted,), {"hold": threading.Event(), "begun": 0})
    made.hold.set()
    monkeypatch.setattr(environment_tasks, "Build", made)
    return made


def done(thread: threading.Thread | None) -> None:
    assert thread is not None
    thread.join(120)
    assert not thread.is_alive()


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def answers(sent: Broker) -> list[EnvironmentBuilt]:
    found = sent.of("control.apply_environment_build")
    return [messages.receive(each.kwargs["answer"], EnvironmentBuilt) for each in found]


def progress(sent: Broker) -> list[EnvironmentProgress]:
    found = sent.of("control.environment_progress")
    return [messages.receive(each.kwargs["progress"], EnvironmentProgress) for each in found]


def test_build_continues_after_its_task_has_returned(build: type[Scripted], sent: Broker) -> None:
    build.hold.clear()
    app.tasks["node.environment_build"].run(command=messages.dump(command("pip")))
    wait_for(lambda: progress(sent))
    assert not answers(sent)
    build.hold.set()
    wait_for(lambda: answers(sent))
    (answer,) = answers(sent)
    assert (answer.build, answer.lease, answer.digest, answer.failure) == ("b1", "l1", "0" * 32, None)
    assert (answer.size_mib, answer.programs, answer.lock) == (7, ("python3",), "lock")
    assert sent.of("control.apply_environment_build")[0].queue == "control"


def test_whole_log_arrives_in_order(build: type[Scripted], sent: Broker) -> None:
    build.lines = tuple(f"{number} {'x' * 3000}" for number in range(100))
    done(environment_tasks.begin(command("pip")))
    text = ""
    for each in progress(sent):
        assert each.log_offset == len(text) and len(each.log) <= MAX_LOG
        text += each.log
    assert text.splitlines() == list(build.lines)
    assert progress(sent)[-1].stage is BuildStage.DOWNLOADING


def test_silent_build_still_sends_progress(build: type[Scripted], sent: Broker) -> None:
    build.hold.clear()
    thread = environment_tasks.begin(command("pip"))
    wait_for(lambda: sum(not each.log for each in progress(sent)) >= 3)
    build.hold.set()
    done(thread)


def test_repeated_command_twice_builds_once(build: type[Scripted], sent: Broker) -> None:
    build.hold.clear()
    first = environment_tasks.begin(command("pip"))
    wait_for(lambda: build.begun)
    done(environment_tasks.begin(command("pip")))
    build.hold.set()
    done(first)
    done(environment_tasks.begin(command("pip")))
    assert build.begun == 1 and len(answers(sent)) == 1
    done(environment_tasks.begin(command("pip", lease="l2")))
    assert build.begun == 2 and answers(sent)[1].lease == "l2"


def test_late_command_is_not_started(build: type[Scripted], sent: Broker) -> None:
    assert environment_tasks.begin(command("pip", expires_at=time.time() - 1)) is None
    assert not build.begun and len(sent) == 0


def test_cancelled_build_reports_cancellation(build: type[Scripted], sent: Broker) -> None:
    build.hold.clear()
    thread = environment_tasks.begin(command("pip"))
    app.tasks["node.environment_cancel"].run(command={"build": "b1", "lease": "other"})
    app.tasks["node.environment_cancel"].run(command={"build": "b1", "lease": "l1"})
    done(thread)
    (answer,) = answers(sent)
    assert answer.failure is not None and answer.failure.code == "cancelled"


def test_unexpected_error_is_answered_as_a_failure(build: type[Scripted], sent: Broker) -> None:
    build.error = RuntimeError("secret detail")
    done(environment_tasks.begin(command("pip")))
    (answer,) = answers(sent)
    assert answer.failure is not None and answer.failure.code == "unforeseen" and answer.failure.retryable
    assert "secret" not in answer.failure.message


def test_log_is_complete_after_a_broker_outage(build: type[Scripted], sent: Broker) -> None:
    build.hold.clear()
    sent.away = True
    thread = environment_tasks.begin(command("pip"))
    wait_for(lambda: build.begun)
    sent.away = False
    build.hold.set()
    done(thread)
    assert "".join(each.log for each in progress(sent)) == "one\ntwo\n"
    assert len(answers(sent)) == 1


@pytest.mark.parametrize("wrong", [{"python": "../3.12"}, {"source_kind": "shell"}, {"digest": "/etc"}])
def test_invalid_command_is_refused(build: type[Scripted], sent: Broker, wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="EnvironmentBuild"):
        app.tasks["node.environment_build"].run(command={**messages.dump(command("pip")), **wrong})
    with pytest.raises(ValueError, match="EnvironmentRemoval"):
        app.tasks["node.environment_remove"].run(command={"digest": "../notebook"})


def test_own_packages_are_reported_to_the_waiting_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(environment_tasks, "reply", lambda key, answer: said.append(answer))
    task = app.tasks["node.read_overlay"]
    task.run(of={"team": "t", "owner": "ada"}, reply_key="berth:reply:1")
    task.run(of={"team": "..", "owner": "../ada"}, reply_key="berth:reply:1")
    assert said[0]["packages"] == [] and "is not a valid folder name" in said[1]["error"]
    with pytest.raises(ValueError, match="reply key"):
        task.run(of={"team": "t", "owner": "ada"}, reply_key="anything")


def test_built_environment_is_in_the_inventory_until_removed(
    sent: Broker, packages: PackageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "berth"))
    (tmp_path / "berth").mkdir()
    done(environment_tasks.begin(command("pip")))
    (answer,) = answers(sent)
    assert answer.failure is None and answer.packages[0].name == "pip"
    driver = environment_tasks.local_driver()
    (node,) = driver.inventory().nodes
    assert [(held.digest, held.programs) for held in node.environments] == [(answer.digest, answer.programs)]
    place = driver.environments.folder_of(answer.digest)
    app.tasks["node.environment_remove"].run(command={"digest": answer.digest})
    # Wait for more than the removed folder: a sweep does nothing while a removal holds the store.
    for thread in threading.enumerate():
        if thread.name == "environment-removal":
            done(thread)
    assert not place.exists()
    half = driver.environments.folder_of("0" * 32)
    half.mkdir()
    environment_tasks.sweep()
    assert not half.exists()
    (node,) = driver.inventory().nodes
    assert node.environments == ()
