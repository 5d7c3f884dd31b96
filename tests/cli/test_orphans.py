"""`berth orphans`."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.cli import orphans as cli
from portal.cli.errors import Missing, UsageError
from portal.workspaces.orphans.models import Orphan
from tests.factories import local_pool_with, make_token, node_info


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def as_operator(as_bob, olga, team, monkeypatch):
    """`berth …` signed in as an operator; a home, a folder and a removed item are known."""
    pool = local_pool_with(node_info("gpu-a"))
    now = timezone.now()
    for kind, name, size, state, hours in (
        ("home", f"{team.slug}/ghost", 2048, "found", 50),
        ("folder", "ws-rest", 7, "found", 2),
        ("folder", "ws-old", 7, "removed", 90),
    ):
        Orphan.objects.create(
            pool=pool, node="gpu-a", kind=kind, name=name, size_mib=size, state=state, seen_at=now,
            first_seen_at=now - timedelta(hours=hours, minutes=1),
        )  # fmt: skip
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    return as_bob


def states() -> dict[str, str]:
    return {name.split("/")[-1]: state for name, state in Orphan.objects.values_list("name", "state")}


def test_list_shows_age_size_and_next_step(as_operator, team):
    ran = as_operator("orphans")
    assert ran.code == 0, ran.err
    head, folder, home = ran.out.splitlines()
    assert head.split()[:6] == ["ID", "WHAT", "NAME", "NODE", "SIZE", "AGE"]
    assert "ws-rest" in folder and "7 MiB" in folder and "2 h" in folder and "deleted in 21 h" in folder
    assert f"{team.slug}/ghost" in home and "2.0 GiB" in home and "2 d" in home
    assert home.endswith("kept until you delete it")
    assert "ws-old" not in ran.out and "deleted" in as_operator("orphans", "--all").out.splitlines()[-1]
    (only,) = as_operator("orphans", "--kind", "home", "--json").json
    assert only["id"].startswith(home.split()[0])
    assert as_operator("orphans", "--node", "gpu-x").err == "No orphans.\n"


def test_folder_is_deleted_after_confirmation(as_operator, sent, monkeypatch):
    asked = as_operator("orphans", "rm", "ws-rest")
    assert asked.code == 2 and "--yes" in asked.err and states()["ws-rest"] == "found"
    row = Orphan.objects.get(name="ws-rest")
    ran = as_operator("orphans", "rm", str(row.pk)[:8], "-y")
    assert (ran.code, ran.out) == (0, "ws-rest on gpu-a is being deleted.\n")
    assert states() == {"ghost": "found", "ws-rest": "removing", "ws-old": "removed"}

    def refuse(_s: float) -> None:
        Orphan.objects.filter(pk=row.pk).update(state="found", problem="It is in use.")

    monkeypatch.setattr("portal.cli.orphans.time.sleep", refuse)
    waited = as_operator("orphans", "rm", "ws-rest", "--yes", "--wait")
    assert (waited.code, waited.out) == (1, "It is in use.\n")


def test_home_is_deleted_only_after_its_name_is_typed(as_operator, team, sent, monkeypatch):
    name = f"{team.slug}/ghost"
    unasked = as_operator("orphans", "rm", name, "--yes")
    assert unasked.code == 2 and f"--confirm {name}" in unasked.err
    monkeypatch.setattr("sys.stdin", Keyboard("y\n"))
    assert as_operator("orphans", "rm", name).err == "berth: Nothing changed.\n"
    assert as_operator("orphans", "rm", name, "--confirm", "ghost").code == 1, "the portal looks at it too"
    assert states()["ghost"] == "found"
    monkeypatch.setattr("sys.stdin", Keyboard(f"{name}\n"))
    ran = as_operator("orphans", "rm", name)
    assert ran.code == 0 and "permanently deleted" in ran.out and states()["ghost"] == "removing"


def test_missing_orphan_and_missing_permission(as_operator, bob, monkeypatch):
    assert as_operator("orphans", "rm", "ws-old", "-y").code == 5
    monkeypatch.setenv("BERTH_TOKEN", make_token(bob)[1])
    assert as_operator("orphans").code == 1


def test_ambiguous_orphan_name_is_refused():
    rows = [{"id": f"{number}abc-x", "name": "lab/ghost", "state": "found"} for number in range(2)]
    with pytest.raises(UsageError, match="Several"):
        cli._find_orphan(rows, "lab/ghost")
    assert cli._find_orphan(rows, "1abc") is rows[1]
    for too_little in ("", "1", "1ab"):
        with pytest.raises(Missing):
            cli._find_orphan(rows, too_little)
