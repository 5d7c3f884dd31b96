"""up, ls, open, start, stop, rm and logs"""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events.services import record
from portal.people.accounts.models import Membership, Role
from portal.workspaces import own_packages
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from portal.workspaces.results import driver_reason
from tests.factories import MembershipFactory, TeamFactory, WorkspaceFactory
from tests.workspaces.gateway.gateway_support import eventually

UP = ("up", "--flavor", "sim-cpu")


def test_up_prints_the_address(as_bob: Any) -> None:
    ran = as_bob(*UP, "--name", "mine")

    workspace = Workspace.objects.get()
    assert ran.code == 0
    assert ran.out == f"{workspace.origin}/lab\n"
    assert "mine is provisioning (simulated)" in ran.err
    assert (workspace.template.slug, workspace.team.slug) == ("jupyterlab", "vision")


def test_up_prints_queue_position_and_expected_start(as_bob: Any, bob: Any, pool: Any) -> None:
    gpus = sum(node.devices.count() for node in pool.nodes.all())
    for _ in range(gpus // 4):
        assert as_bob("up", "--flavor", "sim-h100-x4", "--hours", "1.5").code == 0
    assert Workspace.objects.filter(state=State.PROVISIONING, expected_s=5400).count() == gpus // 4
    ran = as_bob("up", "--flavor", "sim-h100-x4", "--name", "late")
    assert ran.code == 0
    assert "late is pending (simulated), position 1, expected to start " in ran.err, ran.err
    refused = as_bob("up", "--flavor", "sim-cpu", "--hours", "1000")
    assert refused.code == 1 and "exceeds the limit of 14 d" in refused.err


def test_up_sets_checkpointed(as_bob: Any) -> None:
    assert as_bob(*UP, "--checkpointed").code == 0
    assert as_bob(*UP).code == 0
    said, unsaid = Workspace.objects.order_by("created_at")
    assert (said.checkpointed, said.loses_work) == (True, False)
    assert unsaid.checkpointed is None


def test_up_wait_returns_when_the_workspace_runs(as_bob: Any, workers: None) -> None:
    ran = as_bob(*UP, "--wait", "--json")

    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert ran.json["state"] == "running"


def test_up_wait_prints_progress(as_bob: Any, workers: None) -> None:
    ran = as_bob(*UP, "--wait")

    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[-1] == "jupyterlab is running (simulated)"


def test_up_wait_prints_the_reason_of_a_failure(as_bob: Any) -> None:
    def fail() -> None:
        try:
            workspace = eventually(Workspace.objects.filter(state=State.PROVISIONING).first)
            # State and reason must become visible together.
            with transaction.atomic():
                Workspace.objects.update(state=State.FAILED, state_since=timezone.now())
                WorkspaceStatus.objects.update(reason=driver_reason("broken", "It broke.").as_json())
                record(actor=SYSTEM, kind="workspace.gone", message="found it gone", workspace=workspace)
        finally:
            connection.close()

    thread = threading.Thread(target=fail)
    thread.start()
    ran = as_bob(*UP, "--wait", "--timeout", "60")
    thread.join(20)

    assert ran.code == 1, ran.err
    assert "berth: jupyterlab is failed (simulated): It broke.\n" in ran.err
    assert "→ `berth logs" in ran.err


def test_ls(as_bob: Any, bob: Any, alice: Any, team: Any) -> None:
    assert as_bob("ls").err == "No workspaces. `berth up` starts one.\n"
    assert as_bob("ls", "--json").json == []
    mine = WorkspaceFactory(owner=bob, team=team, name="mine", state=State.STOPPED)
    MembershipFactory(team=(other := TeamFactory(slug="audio")), user=bob, role="owner")
    WorkspaceFactory(owner=alice, team=other, name="hers")

    lines = as_bob("ls").out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "TEMPLATE", "FLAVOR", "TEAM", "OWNER", "ID"]
    assert [line.split()[0] for line in lines[1:]] == ["mine"]
    assert str(mine.pk) in lines[1]
    assert {row["name"] for row in as_bob("ls", "--all", "--json").json} == {"mine", "hers"}
    assert [row["name"] for row in as_bob("ls", "--state", "stopped", "--json").json] == ["mine"]


def test_ls_lists_more_than_one_page(as_bob: Any, bob: Any, team: Any) -> None:
    for _ in range(60):
        WorkspaceFactory(owner=bob, team=team)
    assert len(as_bob("ls", "--json").json) == 60


def test_open(as_bob: Any, bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = WorkspaceFactory(owner=bob, team=team, name="mine")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)

    ran = as_bob("open", "mine", "--browser")

    assert ran.code == 0
    assert ran.out == f"{workspace.origin}/\n"
    assert ran.err == "Note: mine is pending\n"
    assert opened == [f"http://localhost:8000/workspaces/{workspace.pk}/open/"]
    assert as_bob("open", str(workspace.pk)).code == 0


@pytest.mark.parametrize("name", ["nonesuch", "00000000-0000-0000-0000-000000000000", "../teams"])
def test_missing_workspace_is_an_error(as_bob: Any, name: str) -> None:
    ran = as_bob("open", name)
    assert (ran.code, "→" in ran.err) == (5, True)


def test_equal_names_in_two_teams_need_an_id(as_bob: Any, bob: Any, team: Any) -> None:
    audio = TeamFactory(slug="audio")
    MembershipFactory(team=audio, user=bob)
    for where in (team, audio):
        WorkspaceFactory(owner=bob, team=where, name="mine")

    ran = as_bob("open", "mine")
    assert (ran.code, "--team" in ran.err) == (2, True)
    assert as_bob("open", "mine", "--team", "audio").code == 0


def test_stop_and_start(as_bob: Any, workers: None) -> None:
    assert as_bob(*UP, "--wait", "--json").code == 0

    assert as_bob("stop", "jupyterlab").out.startswith("jupyterlab is stop")
    identity = str(Workspace.objects.get().pk)
    for _ in range(400):
        if as_bob("open", identity, "--json").json["state"] == "stopped":
            break
    ran = as_bob("start", "jupyterlab", "--wait", "--json")
    assert (ran.code, ran.json["state"]) == (0, "running")


def test_gpus_are_released_and_attached(as_bob: Any, pool: Any, workers: None) -> None:
    assert as_bob("up", "--flavor", "sim-h100-x1", "--name", "train", "--wait").code == 0
    assert as_bob("release-gpu", "train").out.startswith("train is ")
    assert Workspace.objects.get().gpu_released
    eventually(lambda: Workspace.objects.filter(state=State.RUNNING).first(), timeout_s=60)
    assert as_bob("attach-gpu", "train").code == 0
    assert not Workspace.objects.get().gpu_released
    assert as_bob(*UP, "--name", "plain").code == 0
    refused = as_bob("release-gpu", "plain")
    assert refused.code == 1 and "has no GPUs to release" in refused.err


def test_resize_changes_the_flavor(as_bob: Any, pool: Any, workers: None) -> None:
    assert as_bob("up", "--flavor", "sim-h100-x1", "--name", "train", "--wait").code == 0
    assert as_bob("resize", "train", "--flavor", "sim-h100-x2").out.startswith("train is ")
    workspace = Workspace.objects.get()
    assert (workspace.flavor.slug, workspace.resources["accelerators"]["count"]) == ("sim-h100-x2", 2)
    refused = as_bob("resize", "train", "--flavor", "no-such")
    assert refused.code != 0 and "no-such" in refused.err


def test_rm_asks_for_confirmation(as_bob: Any, bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    WorkspaceFactory(owner=bob, team=team, name="mine")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert as_bob("rm", "mine").code == 1
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert as_bob("rm", "mine").code == 2
    assert Workspace.objects.get().state == State.PENDING

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    ran = as_bob("rm", "mine")
    assert (ran.code, ran.out.endswith("mine is being deleted.\n")) == (0, True)
    assert Workspace.objects.get().state == State.TERMINATED


def test_rm_yes_needs_no_confirmation(as_bob: Any, bob: Any, team: Any) -> None:
    WorkspaceFactory(owner=bob, team=team, name="mine")
    assert as_bob("rm", "mine", "--yes", "--json").json["deleted"] is True


def test_logs(as_bob: Any, bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    WorkspaceFactory(owner=bob, team=team, name="mine", state=State.FAILED, status__log_tail="one\ntwo")

    assert as_bob("logs", "mine").out == "one\ntwo\n"
    assert as_bob("logs", "mine", "--json").json == {"text": "one\ntwo"}
    assert as_bob("logs", "mine", "--tail", "0").code == 2


def test_packages(as_bob: Any, bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = WorkspaceFactory(owner=bob, team=team, name="mine")
    own = own_packages.OwnPackages((own_packages.OwnPackage("polars", "1.9.0", "1.8.0"),), "3.12")
    monkeypatch.setattr(own_packages, "read", lambda **_: own)

    assert as_bob("packages", "mine").out.splitlines()[1].split() == ["polars", "1.9.0", "1.8.0"]
    assert as_bob("packages", "mine", "--json").json["requirements"] == "polars==1.9.0\n"
    assert "next start deletes" in as_bob("packages", "mine", "--reset").out
    workspace.refresh_from_db()
    assert workspace.packages_reset_after == workspace.generation
    assert "are kept" in as_bob("packages", "mine", "--keep").out
    assert as_bob("packages", "mine", "--save", "Mine").code == 1
    Membership.objects.filter(user=bob).update(role=Role.OWNER)
    assert "Environment mine created" in as_bob("packages", "mine", "--save", "Mine").out
    assert as_bob("packages", "mine", "--everybody").code == 2
    monkeypatch.setattr(own_packages, "read", lambda **_: own_packages.OwnPackages())
    assert as_bob("packages", "mine").out == ""


@pytest.mark.parametrize("arguments", [["nonsense"], ["open"], ["up", "--timeout", "x"]])
def test_invalid_arguments_exit_with_2(berth: Any, arguments: list[str]) -> None:
    assert berth(*arguments).code == 2


def test_help_lists_the_exit_codes(berth: Any) -> None:
    ran = berth("--help")
    assert (ran.code, "exit codes" in ran.out) == (0, True)


def test_set_changes_name_duration_and_priority(as_bob: Any, bob: Any, team: Any) -> None:
    workspace = WorkspaceFactory(owner=bob, team=team, name="mine")
    assert as_bob("set", "mine", "--name", "other", "--hours", "3", "--priority", "-5").code == 0
    workspace.refresh_from_db()
    assert (workspace.name, workspace.expected_s, workspace.priority) == ("other", 10_800, -5)
    assert as_bob("set", "other").code == 2
    refused = as_bob("set", "other", "--priority", "5", "--json")
    assert (refused.code, refused.json["error"]["status"]) == (1, 403)
