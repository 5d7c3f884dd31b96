"""GET /api/v1/workspaces/{id}/logs"""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.errors import Unavailable
from portal.common.reasons.reason import Reason
from portal.workspaces import services
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.api.conftest import problem
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.people


@pytest.fixture
def workspace(bob: Any, team: Any) -> Workspace:
    return WorkspaceFactory(owner=bob, team=team, state=State.FAILED, status__log_tail="first\nlast ümläut\n")


def test_logs_are_returned_as_json_and_as_text(api: Any, bob: Any, workspace: Workspace) -> None:
    assert api(bob).get(f"workspaces/{workspace.pk}/logs").json() == {"text": "first\nlast ümläut\n"}
    text = api(bob).get(f"workspaces/{workspace.pk}/logs?tail=10", Accept="text/plain")
    assert text["Content-Type"] == "text/plain; charset=utf-8"
    assert text.content.decode() == "first\nlast ümläut\n"


def test_permissions(api: Any, alice: Any, charlie: Any, olga: Any, workspace: Workspace) -> None:
    for user in (alice, olga):
        assert api(user).get(f"workspaces/{workspace.pk}/logs").status_code == 200
    problem(api(charlie).get(f"workspaces/{workspace.pk}/logs"), 404, "not_found")
    problem(api(None).get(f"workspaces/{workspace.pk}/logs"), 401, "not_authenticated")


@pytest.mark.parametrize("tail", ["0", "-1", "5001", "many", "9" * 20, "٣"])
def test_invalid_tail_is_400(api: Any, bob: Any, workspace: Workspace, tail: str) -> None:
    body = problem(api(bob).get(f"workspaces/{workspace.pk}/logs?tail={tail}"), 400, "invalid")
    assert "tail" in body["errors"]


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
def test_unreachable_node_is_503(
    api: Any, bob: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    def silent(**_: Any) -> str:
        raise Unavailable(Reason(WorkspaceCode.NODE_SILENT))

    monkeypatch.setattr(services, "read_logs", silent)
    problem(api(bob).get(f"workspaces/{workspace.pk}/logs", Accept=accept), 503, "unavailable")
