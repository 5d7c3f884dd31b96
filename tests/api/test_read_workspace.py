"""GET /api/v1/workspaces/{id}"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from portal.workspaces.models import Workspace, WorkspaceStatus
from portal.workspaces.results import driver_reason
from tests.api.conftest import problem
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def workspace(bob: Any, team: Any) -> Workspace:
    return WorkspaceFactory(
        owner=bob,
        team=team,
        queue_entry__outcome="queued",
        queue_entry__reason=driver_reason("", "Waits.").as_json(),
    )


def test_permissions(api: Any, alice: Any, bob: Any, charlie: Any, olga: Any, workspace: Workspace) -> None:
    for user in (alice, bob, olga):
        assert api(user).get(f"workspaces/{workspace.pk}").json()["id"] == str(workspace.pk)
    problem(api(charlie).get(f"workspaces/{workspace.pk}"), 404, "not_found")
    problem(api(None).get(f"workspaces/{workspace.pk}"), 401, "not_authenticated")


def test_queued_workspace_shows_its_reason(api: Any, bob: Any, workspace: Workspace) -> None:
    body = api(bob).get(f"workspaces/{workspace.pk}/").json()
    assert body["error"] == {"code": "queued", "message": "Waits."}
    waiting = body["stages"][1]
    assert (waiting["key"], waiting["label"], waiting["state"]) == ("admitted", "Admitted", "current")
    assert waiting["began_at"] == body["requested_at"]
    assert waiting["seconds"] >= 0


def test_missing_workspace_is_404(api: Any, bob: Any) -> None:
    assert problem(api(bob).get(f"workspaces/{uuid.uuid4()}"), 404, "not_found")["next_action"]


def test_unchanged_workspace_is_304(api: Any, bob: Any, workspace: Workspace) -> None:
    program = api(bob)
    tag = program.get(f"workspaces/{workspace.pk}")["ETag"]

    same = program.get(f"workspaces/{workspace.pk}", **{"If-None-Match": f'"other", {tag}'})
    assert (same.status_code, same.content, same["ETag"]) == (304, b"", tag)

    WorkspaceStatus.objects.filter(pk=workspace.pk).update(activity={"kernels": 1})
    measured = program.get(f"workspaces/{workspace.pk}", **{"If-None-Match": tag})
    assert measured.status_code == 200
    assert measured["ETag"] != tag
    assert measured["ETag"].partition(".")[0] == tag.partition(".")[0]

    Workspace.objects.filter(pk=workspace.pk).update(state="stopped")
    assert program.get(f"workspaces/{workspace.pk}")["ETag"].partition(".")[0] != tag.partition(".")[0]


def test_wildcard_etag_and_head_are_compared_like_a_single_tag(
    api: Any, bob: Any, workspace: Workspace
) -> None:
    program, path = api(bob), f"workspaces/{workspace.pk}"
    tag = program.get(path)["ETag"]

    for etag in ("*", tag, tag.removeprefix("W/")):
        for method in ("GET", "HEAD"):
            same = program.send(method, path, **{"If-None-Match": etag})
            assert (same.status_code, same.content, same["ETag"]) == (304, b"", tag), (method, etag)
    for etag in ('"other"', "not a tag", ""):
        assert program.get(path, **{"If-None-Match": etag}).status_code == 200, etag
