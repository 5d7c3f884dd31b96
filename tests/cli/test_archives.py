"""`berth files archives …`."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Allocation, Node
from portal.workspaces.homes.codes import ArchiveCode
from portal.workspaces.models import HomeArchive, HomePlace
from tests.factories import WorkspaceFactory, local_pool_with, node_info


@pytest.fixture
def home(as_bob: Any, bob: Any, team: Any) -> Any:
    """Bob's stopped workspace; his home is on gpu-a."""
    pool = local_pool_with(node_info("gpu-a"))
    mine = WorkspaceFactory(owner=bob, team=team, pool=pool, name="mine", state="stopped")
    node, now = Node.objects.get(name="gpu-a"), timezone.now()
    Allocation.objects.create(
        workspace=mine, node=node, generation=1, cpu_milli=1, memory_mib=1, granted_at=now, released_at=now
    )
    HomePlace.objects.create(owner=bob, team=team, pool=pool, node=node, since=now)
    return as_bob


def set_result(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Replace waiting: apply the node's result."""
    monkeypatch.setattr(
        "portal.cli.archives.time.sleep", lambda _s: HomeArchive.objects.update(open=False, **changes)
    )


def test_archives_are_created_downloaded_and_deleted(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_result(monkeypatch, state="ready", size_bytes=3 << 20, made_at=timezone.now())
    made = home("files", "archives", "make", "mine", "--name", "before", "--wait")
    assert (made.code, made.out) == (0, "before is ready on gpu-a\n") and "making" in made.err
    assert home("files", "archives", "ls", "mine").out.splitlines()[1].split()[:2] == ["before", "ready"]

    assert home("files", "archives", "restore", "mine", "before").code == 2, "nobody was there to be asked"
    set_result(monkeypatch, state="ready", restored_at=timezone.now())
    done = home("files", "archives", "restore", "mine", "before", "--wait", "-y", "--json")
    assert done.code == 0 and done.json["restored_at"]

    monkeypatch.setattr("portal.cli.archives.time.sleep", lambda _s: HomeArchive.objects.all().delete())
    assert home("files", "archives", "rm", "mine", done.json["id"], "-y", "--wait").code == 0
    assert home("files", "archives", "ls", "mine", "--json").json == []


def test_failed_archives_are_reported(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_result(monkeypatch, state="failed", reason=Reason(ArchiveCode.NODE_GONE, {"node": "gpu-a"}).as_json())
    failed = home("files", "archives", "make", "mine", "--name", "twice", "--wait")
    assert failed.code == 1 and "“twice” was not created: " in failed.err and "gpu-a" in failed.err
    HomeArchive.objects.update(state="ready", reason={})

    set_result(monkeypatch, state="ready", reason=Reason(ArchiveCode.DAMAGED).as_json())
    damaged = home("files", "archives", "restore", "mine", "twice", "--wait", "-y")
    assert damaged.code == 1 and "Your home folder is unchanged: " in damaged.err

    assert home("files", "archives", "make", "mine", "--name", "twice").code == 0
    refused = home("files", "archives", "make", "mine", "--json")
    assert (refused.code, refused.json["error"]["status"]) == (1, 409)
    several = home("files", "archives", "cancel", "mine", "twice")
    assert several.code == 2 and "Choose one by id" in several.err
    making = HomeArchive.objects.get(state="making")
    assert home("files", "archives", "cancel", "mine", str(making.pk)).code == 0
    assert home("files", "archives", "restore", "mine", "nothing", "-y").code == 5


def test_wait_ends_at_the_timeout(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portal.cli.archives.time.sleep", lambda _s: None)
    assert home("files", "archives", "make", "mine", "--wait", "--timeout", "1").code == 6
    assert HomeArchive.objects.get().state == "making", "it goes on"
