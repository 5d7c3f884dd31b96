"""The log of a workspace as a file: its name, headers, bounds and errors."""

from __future__ import annotations

import pytest

from portal.common.errors import Unavailable
from portal.common.reasons.reason import Reason
from portal.workspaces import dispatch, services
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace
from tests import sites

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
MARKUP = "<script>alert(1)</script>\nline 2 · Ωµ\n"


def test_log_is_sent_as_a_file_that_no_browser_runs(make, alice, local_pool, sent, as_user, monkeypatch):
    bounds = []

    def read(_workspace: Workspace, *, tail_lines: int) -> str:
        bounds.append(tail_lines)
        return MARKUP

    monkeypatch.setattr(dispatch, "read_logs", read)
    workspace = make(alice, name="training")
    url = f"/workspaces/{workspace.pk}/logs/download/"
    client = as_user(alice)
    assert f'href="{url}"' in client.get(f"/workspaces/{workspace.pk}/").content.decode()
    answer = client.get(url)
    assert answer.content.decode() == MARKUP
    assert answer["Content-Disposition"] == 'attachment; filename="training.log"'
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "no-store" in answer["Cache-Control"]
    assert bounds == [services.MAX_LOG_LINES]


@pytest.mark.parametrize("name", ['a"b', "naïve λ"])
def test_file_name_cannot_break_the_header(make, alice, local_pool, as_user, monkeypatch, name):
    monkeypatch.setattr(dispatch, "read_logs", lambda *_, **__: "x")
    workspace = make(alice)
    Workspace.objects.filter(pk=workspace.pk).update(name=name)
    header = as_user(alice).get(f"/workspaces/{workspace.pk}/logs/download/")["Content-Disposition"]
    assert header in (
        'attachment; filename="a\\"b.log"',
        "attachment; filename*=utf-8''na%C3%AFve%20%CE%BB.log",
    )


def test_silent_node_gives_an_error_page_and_no_file(make, alice, local_pool, as_user, monkeypatch):
    def silent(*_: object, **__: object) -> str:
        raise Unavailable(Reason(WorkspaceCode.NODE_SILENT))

    monkeypatch.setattr(dispatch, "read_logs", silent)
    workspace = make(alice)
    answer = as_user(alice).get(f"/workspaces/{workspace.pk}/logs/download/")
    assert answer.status_code == 503 and "Content-Disposition" not in answer


def test_failed_workspace_gives_its_stored_lines(make, alice, local_pool, as_user):
    workspace = make(alice)
    Workspace.objects.filter(pk=workspace.pk).update(state="failed")
    workspace.status.log_tail = "last words"
    workspace.status.save()
    client = as_user(alice)
    assert client.get(f"/workspaces/{workspace.pk}/logs/download/").content == b"last words"
