"""queue, requests, events, completion, --quiet, and progress on a terminal"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from typing import Any

import pytest

from portal.cli.client import BerthClient
from portal.cli.completion import script
from portal.cli.requests import base_units
from portal.cli.terminal import HarmlessStream, Progress
from portal.common.actors import SYSTEM
from portal.common.events.kinds import AuditKind
from portal.common.events.services import record
from portal.people.accounts.models import User
from portal.quota.limits.services import limits
from portal.quota.requests.models import QuotaRequest
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import UserFactory, WorkspaceFactory, make_token

H100 = "gpu:simulated-h100"


def test_queue_lists_waiting_workspaces(as_bob: Any, pool: Any) -> None:
    assert as_bob("queue").err == "No workspaces are waiting.\n"
    gpus = sum(node.devices.count() for node in pool.nodes.all())
    for _ in range(gpus // 4):
        assert as_bob("up", "--flavor", "sim-h100-x4").code == 0
    assert as_bob("up", "--flavor", "sim-h100-x4", "--name", "late").code == 0
    ran = as_bob("queue", "--mine")
    assert ran.code == 0, ran.err
    head, row = ran.out.splitlines()
    assert head.split()[:3] == ["#", "NAME", "OWNER"] and row.split()[:3] == ["1", "late", "bob"]
    assert [each["name"] for each in as_bob("queue", "--json").json] == ["late"]


def test_requests_are_created_and_decided(as_bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_quota(actor=SYSTEM, team=team, resource=H100, quota=1000)
    ran = as_bob("requests", "ask", "--resource", H100, "--amount", "2", "--note", "A paper", "--hours", "48")
    assert ran.code == 0, ran.err
    made = QuotaRequest.objects.get()
    assert (made.amount, made.note, made.team) == (2000, "A paper", team) and made.until is not None
    assert f"open, 2 {H100} for {team.slug}." in ran.out
    short = str(made.pk)[:8]
    assert as_bob("requests").out.splitlines()[1].split()[:6] == [
        short,
        "open",
        "vision",
        "bob",
        H100,
        "2",
    ]
    # The requester cannot decide.
    assert as_bob("requests", "approve", short).code in (1, 5)

    approver: User = UserFactory(username="app", is_approver=True)
    monkeypatch.setenv("BERTH_TOKEN", make_token(approver)[1])
    ran = as_bob("requests", "approve", short, "--amount", "1", "--note", "One will do")
    assert ran.code == 0, ran.err
    made.refresh_from_db()
    assert (made.state, made.granted_amount, made.decision_note) == ("approved", 1000, "One will do")
    assert as_bob("requests", "deny", short, "--note", "late").code == 5
    assert as_bob("requests", "deny", str(made.pk), "--note", "late").code == 1
    assert as_bob("requests").out == ""
    assert as_bob("requests", "--all", "--json").json[0]["state"] == "approved"


def test_request_can_be_cancelled(as_bob: Any, team: Any) -> None:
    limits.set_quota(actor=SYSTEM, team=team, resource="workspaces", quota=1)
    asked = ("requests", "ask", "--resource", "workspaces", "--amount", "3", "--note", "More")
    made = as_bob(*asked, "--json").json
    assert "error" not in made, made
    assert made["amount"] == 3
    assert as_bob("requests", "cancel", made["id"][:10], "--json").json["state"] == "cancelled"
    assert as_bob(*asked[:-2]).code == 2
    assert as_bob("requests", "ask", *asked[2:5], "-1", "--note", "x").code == 2


def test_amounts_are_converted_to_base_units() -> None:
    assert [base_units(1.5, name) for name in ("gpu:h100", "cpu_milli", "memory_mib", "workspaces")] == [
        1500,
        1500,
        1536,
        2,
    ]
    assert base_units(2, "gpu_hours") == 7_200_000


def test_events_are_listed_and_followed(as_bob: Any, bob: Any, team: Any) -> None:
    workspace = WorkspaceFactory(owner=bob, team=team, name="mine")
    for number in range(3):
        record(actor=SYSTEM, kind=AuditKind.WORKSPACE_LAUNCHED, message=f"did {number}", workspace=workspace)
    ran = as_bob("events", "mine", "--tail", "2")
    assert [line.split("  ")[1] for line in ran.out.splitlines()] == ["Berth did 1", "Berth did 2"]
    Workspace.objects.update(state=State.TERMINATED)
    ran = as_bob("events", str(workspace.pk), "--follow", "--json")
    assert (ran.code, [json.loads(line)["message"] for line in ran.out.splitlines()]) == (
        0,
        ["did 0", "did 1", "did 2"],
    )


def test_events_of_all_workspaces_are_listed(as_bob: Any, bob: Any, team: Any) -> None:
    workspace = WorkspaceFactory(owner=bob, team=team, name="mine")
    for kind in (AuditKind.WORKSPACE_READY, AuditKind.WORKSPACE_LAUNCHED, AuditKind.WORKSPACE_STOPPED):
        record(actor=SYSTEM, kind=kind, message="did it", workspace=workspace, cause={"code": "idle"})
    ran = as_bob("events")
    assert ran.code == 0, ran.err
    assert [line.split("  ")[1] for line in ran.out.splitlines()][-2:] == [
        "workspace.started mine vision by Berth: idle",
        "workspace.stopped mine vision by Berth: idle",
    ]
    assert len(as_bob("events", "--tail", "1").out.splitlines()) == 1
    rows = as_bob("events", "--type", "workspace.started", "--team", "vision", "--json").json
    assert [row["data"]["workspace"]["name"] for row in rows] == ["mine"]
    assert as_bob("events", "--type", "no.such").code == 1
    assert as_bob("events", "mine", "--type", "workspace.started").code == 2


def test_events_of_all_workspaces_are_followed(server: str, bob: Any, team: Any) -> None:
    workspace = WorkspaceFactory(owner=bob, team=team, name="mine")
    before = record(actor=SYSTEM, kind=AuditKind.WORKSPACE_READY, message="did it", workspace=workspace)
    with BerthClient(server, make_token(bob)[1]) as client:
        stream = client.events.stream(after=0, type=["workspace.started", "workspace.stopped"])
        assert next(stream)["id"] == before.pk
        after = record(actor=SYSTEM, kind=AuditKind.WORKSPACE_STOPPED, message="did it", workspace=workspace)
        assert next(stream)["id"] == after.pk
        stream.close()


def completed(*words: str) -> list[str]:
    """The completions that bash offers for the last word."""
    lines = (
        "source /dev/stdin",
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))',
        "_berth",
        'echo "${COMPREPLY[@]}"',
    )
    done = subprocess.run(
        ["bash", "-c", "; ".join(lines), "bash", "berth", *words],
        input=script("bash"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completion() -> None:
    assert completed("req") == ["requests"]
    assert completed("requests", "a") == ["ask", "approve"]
    assert completed("up", "--team", "vision", "--cl") == ["--clean-up"]
    assert completed("gpu", "check", "--level", "") == ["quick", "standard", "extended"]
    assert completed("files", "archives", "re") == ["restore"]
    assert set(completed("completion", "")) >= {"bash", "zsh", "fish"}
    assert completed("stop", "mine", "--wa") == ["--wait"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_completion_have_all_commands(berth: Any, shell: str) -> None:
    ran = berth("completion", shell)
    assert ran.code == 0
    for word in ("requests", "archives", "completion", "ignore-missing"):
        assert word in ran.out
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=ran.out, text=True, check=True, timeout=60)
    assert berth("completion", "tcsh").code == 2


def test_quiet_prints_only_results_and_errors(as_bob: Any) -> None:
    assert as_bob("up", "--flavor", "sim-cpu").err != ""
    ran = as_bob("up", "--flavor", "sim-cpu", "--quiet")
    assert (ran.code, ran.err) == (0, "") and ran.out.startswith("http")
    ran = as_bob("up", "--flavor", "nonesuch", "-q")
    assert ran.code == 1 and ran.err.startswith("berth: ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, "\r\x1b[Kone\r\x1b[Ktwo evil\n"),
        ({"NO_COLOR": "1"}, "one\ntwo\nevil\n"),
        ({"CI": "true"}, "one\ntwo\nevil\n"),
        ({"TERM": "dumb"}, "one\ntwo\nevil\n"),
    ],
    ids=["terminal", "NO_COLOR", "CI", "dumb"],
)
def test_progress_on_a_terminal_is_one_line(environ: dict[str, str], shown: str) -> None:
    terminal = Terminal()
    with Progress(HarmlessStream(terminal), environ) as progress:
        progress.show("one")
        progress.show("two\nevil\x1b[2J")
    assert terminal.getvalue() == shown


def test_progress_into_a_pipe_is_plain_lines() -> None:
    pipe = io.StringIO()
    with Progress(pipe, {}) as progress:
        progress.show("one")
        progress.show("two")
    assert pipe.getvalue() == "one\ntwo\n"
