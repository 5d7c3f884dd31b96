"""`berth` itself, and read-only commands."""

from __future__ import annotations

import json
import os
import stat

import pytest
from django.utils import timezone

from portal.catalog import selectors
from portal.cli import waiting
from portal.cli.client import BerthClient
from portal.cli.errors import RequestRejected
from portal.common.actors import SYSTEM
from portal.common.reasons.reason import Reason
from portal.quota.limits.services import limits
from portal.reclaim.codes import LifetimeCode
from portal.workspaces import stops
from portal.workspaces.codes import MemoryCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from tests.factories import WorkspaceFactory, create_workspace

H100 = ("--template", "jupyterlab", "--flavor", "sim-h100-x1")


def test_berth_without_arguments_prints_help_with_examples(berth):
    ran = berth()
    assert (ran.code, ran.err) == (0, "")
    assert "berth up --flavor" in ran.out and "environments" in ran.out


def test_version(berth):
    ran = berth("--version")
    assert ran.code == 0
    name, number = ran.out.split()
    assert name == "berth" and number.count(".") == 2


def test_whoami(as_bob, team):
    ran = as_bob("whoami")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("bob at http://127.0.0.1:") and f"{team.slug} (member)" in ran.out
    assert as_bob("whoami", "--json").json["username"] == "bob"


def test_logout_deletes_the_stored_token(berth, tmp_path):
    assert berth("logout").out == "No stored token.\n"
    stored = tmp_path / ".config" / "berth" / "config.json"
    stored.parent.mkdir(parents=True)
    stored.write_text(json.dumps({"url": "http://localhost:8000", "token": "berth_x"}))
    stored.chmod(stat.S_IRUSR | stat.S_IWUSR)
    ran = berth("logout")
    assert ran.code == 0 and "To revoke it" in ran.out
    assert not stored.exists()
    assert berth("logout", "--json").json == {"forgotten": False}


def test_templates_and_flavors_are_listed(as_bob):
    templates = [line.split()[0] for line in as_bob("templates").out.splitlines()]
    assert templates[0] == "TEMPLATE" and len(templates) == len(as_bob("templates", "--json").json) + 1
    flavors = as_bob("flavors").out
    assert "sim-h100-x1" in flavors and "1 × Simulated H100" in flavors and "(simulated)" in flavors


def test_show_prints_one_workspace(as_bob, bob, team):
    made = WorkspaceFactory(owner=bob, team=team, name="trial")
    ran = as_bob("show", "trial")
    assert ran.code == 0, ran.err
    shown = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert (shown["name"], shown["id"], shown["owner"]) == ("trial", str(made.pk), "bob")
    assert as_bob("show", "trial", "--json").json["id"] == str(made.pk)
    assert as_bob("show", "nonesuch").code == 5
    cause = stops.stored_cause(
        Reason(LifetimeCode.ENDS_BY_SCHEDULE), stops.StopRule("weeks", "team:vision"), timezone.now()
    )
    WorkspaceStatus.objects.filter(workspace=made).update(stopped=cause)
    shown = dict(line.split(maxsplit=1) for line in as_bob("show", "trial").out.splitlines())
    assert shown["why"].startswith("Berth stopped the workspace at 20")
    assert shown["why"].endswith(" Rule weeks, set by team:vision.")


def test_show_names_the_program_that_took_all_memory(as_bob, bob, team, pool):
    made = WorkspaceFactory(owner=bob, team=team, name="trial", state=State.RUNNING, pool=pool)
    reason = Reason(MemoryCode.LIMIT, {"process": "python3", "count": 1, "limit_mib": 2048})
    kill = {"generation": made.generation, "at": timezone.now().isoformat(), "larger": "", "count": 1}
    WorkspaceStatus.objects.filter(workspace=made).update(memory_kill={**kill, **reason.as_json()})
    shown = dict(line.split(maxsplit=1) for line in as_bob("show", "trial").out.splitlines())
    assert "all of its 2 GiB of memory. The system ended “python3”. Reported at 20" in shown["memory"]


@pytest.mark.parametrize(
    ("quota", "code", "outcome"),
    [(4000, 0, "fits_now"), (0, 7, "needs_approval")],
    ids=["fits", "over quota"],
)
def test_preview_of_a_request(as_bob, team, quota, code, outcome):
    limits.set_quota(actor=SYSTEM, team=team, resource="gpu:simulated-h100", quota=quota)
    asked = ("preview", *H100)
    told = as_bob(*asked, "--json")
    assert (told.code, told.json["outcome"]) == (code, outcome), told.err
    assert as_bob(*asked).out.startswith(told.json["message"])
    assert not Workspace.objects.exists()


def test_start_needing_approval_is_not_awaited(as_bob, team):
    limits.set_quota(actor=SYSTEM, team=team, resource="gpu:simulated-h100", quota=0)
    ran = as_bob("up", *H100, "--wait", "--timeout", "60")
    assert ran.code == 7 and 'Add --ask "why" to request it.' in ran.err
    error = as_bob("up", *H100, "--json").json["error"]
    assert error["code"] == "needs_approval" and error["ask"]["start"]["flavor"] == "sim-h100-x1"
    assert not Workspace.objects.exists()


def test_workspace_waiting_for_approval_is_not_awaited(as_bob, bob, team):
    limits.set_quota(actor=SYSTEM, team=team, resource="gpu:simulated-h100", quota=0)
    workspace = create_workspace(
        unapproved=True,
        actor=bob,
        team=team,
        template=selectors.all_templates().get(slug="jupyterlab"),
        flavor=selectors.all_flavors().get(slug="sim-h100-x1"),
    )
    client = BerthClient(os.environ["BERTH_URL"], os.environ["BERTH_TOKEN"])
    with client, pytest.raises(RequestRejected) as refused:
        waiting.wait_ready(client, client.workspaces.get(str(workspace.pk)), timeout_s=60, show=print)
    assert refused.value.exit_code == 7
    assert "Request it at" in refused.value.next_action


def test_errors_are_json_on_standard_output(as_bob):
    ran = as_bob("show", "nonesuch", "--json")
    assert (ran.code, ran.err) == (5, "")
    assert "nonesuch" in ran.json["error"]["message"]
