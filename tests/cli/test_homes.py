"""`berth homes move`."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.inventory.models import Node
from portal.workspaces.homes import evacuations
from portal.workspaces.models import HomeEvacuation, HomePlace
from tests.factories import UserFactory, local_pool_with, make_token, node_info


@pytest.fixture
def as_operator(as_bob, olga, team, monkeypatch):
    """`berth …` signed in as an operator; three homes lie on gpu-a."""
    pool = local_pool_with(node_info("gpu-a"), node_info("gpu-b"))
    node = Node.objects.get(name="gpu-a")
    for number in range(3):
        user = UserFactory(username=f"user-{number}")
        HomePlace.objects.create(user=user, team=team, pool=pool, node=node, since=timezone.now())
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    return as_bob


def test_what_lies_there_and_where_it_can_go(as_operator):
    said = as_operator("homes", "move", "gpu-a", "--dry-run")
    assert (said.code, said.out) == (0, "3 home folders on gpu-a, 0 MiB measured.\n")
    assert as_operator("homes", "move", "gpu-a", "--dry-run", "--json").json["targets"] == ["gpu-b"]
    unsaid = as_operator("homes", "move", "gpu-a")
    assert unsaid.code == 2 and "Add --to with one of: gpu-b." in unsaid.err
    assert as_operator("homes", "move", "gpu-x", "--to", "gpu-b").code == 5
    assert as_operator("homes", "move", "gpu-a", "--to", "gpu-b").code == 2, "nobody was there to be asked"
    refused = as_operator("homes", "move", "gpu-b", "--dry-run").out
    assert "No home folder that could be moved lies on gpu-b." in refused
    assert not HomeEvacuation.objects.exists()


def test_it_waits_and_goes_on_with_what_is_under_way(as_operator, monkeypatch):
    begun = as_operator("homes", "move", "gpu-a", "--to", "gpu-b", "--yes", "--no-wait")
    assert (begun.code, begun.out) == (0, "0 moved from gpu-a to gpu-b, 3 left\n")

    def all_gone(_s: float) -> None:
        HomePlace.objects.update(node=Node.objects.get(name="gpu-b"))
        evacuations.sweep()

    monkeypatch.setattr("portal.cli.homes.time.sleep", all_gone)
    waited = as_operator("homes", "move", "gpu-a", "--to", "gpu-b")
    assert waited.code == 0, "it asks nobody about what goes on already"
    assert waited.out.splitlines()[-1] == "0 moved from gpu-a to gpu-b: done"
    assert HomeEvacuation.objects.count() == 1


def test_some_stayed_is_an_error_of_the_command(as_operator, monkeypatch):
    def cancel(_s: float) -> None:
        HomeEvacuation.objects.update(state="cancelled", ended_at=timezone.now())

    monkeypatch.setattr("portal.cli.homes.time.sleep", cancel)
    ended = as_operator("homes", "move", "gpu-a", "--to", "gpu-b", "-y", "--json")
    assert (ended.code, ended.json["state"]) == (1, "cancelled")
