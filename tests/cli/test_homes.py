"""`berth homes`."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.fleet.inventory.models import Node
from portal.reclaim.models import HomeStay
from portal.workspaces.homes import evacuations
from portal.workspaces.models import HomeArchive, HomeEvacuation, HomePlace
from tests.factories import UserFactory, local_pool_with, make_token, node_info


@pytest.fixture
def as_operator(as_bob, olga, team, monkeypatch):
    """`berth …` signed in as an operator; gpu-a has three homes."""
    pool = local_pool_with(node_info("gpu-a"), node_info("gpu-b"))
    node = Node.objects.get(name="gpu-a")
    for number in range(3):
        user = UserFactory(username=f"user-{number}")
        HomePlace.objects.create(owner=user, team=team, pool=pool, node=node, since=timezone.now())
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    return as_bob


def test_homes_on_the_node_and_their_targets(as_operator):
    said = as_operator("homes", "move", "gpu-a", "--dry-run")
    assert (said.code, said.out) == (0, "3 home folders on gpu-a, 0 MiB measured.\n")
    assert as_operator("homes", "move", "gpu-a", "--dry-run", "--json").json["targets"] == ["gpu-b"]
    unsaid = as_operator("homes", "move", "gpu-a")
    assert unsaid.code == 2 and "Add --to with one of: gpu-b." in unsaid.err
    assert as_operator("homes", "move", "gpu-x", "--to", "gpu-b").code == 5
    assert as_operator("homes", "move", "gpu-a", "--to", "gpu-b").code == 2, "nobody was there to be asked"
    refused = as_operator("homes", "move", "gpu-b", "--dry-run").out
    assert "gpu-b has no home folders to move." in refused
    assert not HomeEvacuation.objects.exists()


def test_move_waits_and_resumes_a_running_evacuation(as_operator, monkeypatch):
    begun = as_operator("homes", "move", "gpu-a", "--to", "gpu-b", "--yes", "--no-wait")
    assert (begun.code, begun.out) == (0, "0 moved from gpu-a to gpu-b, 3 remaining\n")

    def all_gone(_s: float) -> None:
        HomePlace.objects.update(node=Node.objects.get(name="gpu-b"))
        evacuations.sweep()

    monkeypatch.setattr("portal.cli.homes.time.sleep", all_gone)
    waited = as_operator("homes", "move", "gpu-a", "--to", "gpu-b")
    assert waited.code == 0, "it asks nobody about what goes on already"
    assert waited.out.splitlines()[-1] == "0 moved from gpu-a to gpu-b: done"
    assert HomeEvacuation.objects.count() == 1


def test_partial_move_exits_with_an_error(as_operator, monkeypatch):
    def cancel(_s: float) -> None:
        HomeEvacuation.objects.update(state="cancelled", ended_at=timezone.now())

    monkeypatch.setattr("portal.cli.homes.time.sleep", cancel)
    ended = as_operator("homes", "move", "gpu-a", "--to", "gpu-b", "-y", "--json")
    assert (ended.code, ended.json["state"]) == (1, "cancelled")


@pytest.fixture
def archived(as_bob, bob, team):
    """Bob's home, which exists only in an archive."""
    pool = local_pool_with(node_info("gpu-a"))
    node, now = Node.objects.get(name="gpu-a"), timezone.now()
    place = HomePlace.objects.create(owner=bob, team=team, pool=pool, node=node, since=now)
    HomeArchive.objects.create(
        owner=bob, team=team, pool=pool, node=node, node_name="gpu-a", name="x", state="ready", open=False,
        empties=True, asked_at=now, made_at=now, away_at=now, next_at=now, size_bytes=3 << 20,
    )  # fmt: skip
    HomeStay.objects.create(place=place, archive=HomeArchive.objects.get().pk, unused_s=2 * 86_400)
    return as_bob


def test_homes_are_listed_kept_and_restored(archived, monkeypatch):
    line = "vision/bob  this-machine  gpu-a  archived, 3 MiB, for 2 days\n"
    assert archived("homes", "ls").out == archived("homes", "ls", "--archived").out == line
    assert archived("homes", "ls", "--json").json[0]["archive"]["state"] == "ready"
    kept = archived("homes", "keep", "vision")
    assert (kept.code, kept.out) == (0, line.replace("2 days", "0 days"))
    assert archived("homes", "keep", "robots").code == 5

    def made(_s: float) -> None:
        HomeArchive.objects.update(state="ready", away_at=None, open=False)

    monkeypatch.setattr("portal.cli.homes.time.sleep", made)
    restored = archived("homes", "restore", "vision")
    assert (restored.code, restored.out) == (0, "vision/bob  this-machine  gpu-a  in use or not limited\n")
    assert archived("homes", "restore", "vision").code == 5


def test_failed_restore_exits_with_an_error(archived, monkeypatch):
    assert "being restored, 0 of 0 MiB" in archived("homes", "restore", "vision", "--no-wait").out

    def failed(_s: float) -> None:
        HomeArchive.objects.update(state="ready", open=False)

    monkeypatch.setattr("portal.cli.homes.time.sleep", failed)
    assert archived("homes", "restore", "vision").code == 1
