"""Home files in the portal: permissions, node requests and responses."""

from __future__ import annotations

import asyncio

import pytest
from django.test import Client
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict, Unavailable
from portal.fleet.machines.models import MachineState
from portal.workspaces import node_rpc
from portal.workspaces.gateway import file_tickets
from portal.workspaces.home_files import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeUsage
from tests import sites
from tests.factories import MachineFactory, WorkspaceFactory
from tests.workspaces.helpers import run_until_ready
from tests.workspaces.test_own_packages import stop_it

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
HOSTILE = {"id": "%0A%E2%80%AE<script>", "kind": "file", "size": 7, "changed": 1.7e9}


@pytest.fixture
def node(monkeypatch):
    """A node that answers with `answer`; requests are in `asked`."""

    class Node:
        def __init__(self):
            self.asked, self.answer = [], {"ok": {}}

        def __call__(self, task, given, **where):
            assert task == "node.files"
            self.asked.append((given["question"], where["node"]))
            return self.answer

    found = Node()
    monkeypatch.setattr(node_rpc, "call", found)
    return found


@pytest.fixture
def tickets(monkeypatch):
    kept = []
    monkeypatch.setattr(
        file_tickets, "store_ticket", lambda _redis, *given, **more: kept.append((*given, more))
    )
    return kept


@pytest.fixture
def workspace(make, bob, local_pool, sent):
    found = make(bob, name="mine")
    run_until_ready(sent, found)
    return found


def url(workspace, rest=""):
    return f"/workspaces/{workspace.pk}/files/{rest}"


def test_files_are_listed_while_running_and_stopped(workspace, bob, node, sent):
    node.answer = {"ok": {"entries": [HOSTILE, "x", {"id": "a"}], "total": 2}}
    for _ in range(2):
        found = services.listing(actor=bob, workspace=workspace, path="data", offset=5)
        assert [entry.path for entry in found.entries] == [f"data/{HOSTILE['id']}", "data/a"]
        assert found.entries[0].name == "\\n\\u202e<script>"
        if workspace.state == State.RUNNING:
            stop_it(sent, workspace)
    (question, place), _second = node.asked
    assert (question["team"], question["owner"], place) == ("vision", "bob", "node-1")
    assert question["ask"] == {"do": "list", "path": "data", "offset": 5, "limit": services.PAGE}


def test_file_names_are_escaped(workspace, as_user, bob, node):
    node.answer = {"ok": {"entries": [HOSTILE], "total": 1}}
    html = as_user(bob).get(url(workspace)).content.decode()
    assert "<script>" not in html.replace('<script src="', "").replace("<script defer", "")
    assert "&lt;script&gt;" in html
    assert "\u202e" not in html
    assert "path=%250A%25E2%2580%25AE%3Cscript%3E" in html


def test_files_are_accessible_to_the_owner_only(workspace, alice, olga, as_user, node, tickets):
    for other in (alice, olga):
        acts = (
            lambda actor=other: services.listing(actor=actor, workspace=workspace),
            lambda actor=other: services.delete(actor=actor, workspace=workspace, paths=["a"]),
            lambda actor=other: services.download_url(actor=actor, workspace=workspace, path="a"),
            lambda actor=other: services.upload_url(actor=actor, workspace=workspace, path="a"),
        )
        for act in acts:
            with pytest.raises(NotAllowed):
                act()
        assert as_user(other).get(url(workspace)).status_code == 403
        assert as_user(other).post(url(workspace, "delete/"), {"path": "a"}).status_code == 403
    assert (node.asked, tickets) == ([], [])


def test_changes_need_the_csrf_token(workspace, bob, node):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(bob)
    for way in ("folder/", "rename/", "delete/"):
        assert browser.post(url(workspace, way), {"path": "a", "name": "b"}).status_code == 403
    assert node.asked == []


def test_no_files_before_the_first_start(team, bob, local_pool, node):
    waiting = WorkspaceFactory(owner=bob, team=team, state=State.PENDING)
    with pytest.raises(StateConflict) as refused:
        services.listing(actor=bob, workspace=waiting)
    assert refused.value.code == "home_nowhere"
    assert node.asked == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"refused": {"code": "not_found", "name": "a"}}, NotFound),
        ({"refused": {"code": "exists", "name": "a"}}, StateConflict),
        ({"refused": {"code": "bad_name", "name": "%0A"}}, InvalidInput),
        ({"refused": {"code": "something new"}}, StateConflict),
        ({"error": "The disk is gone.", "code": "backend_unavailable"}, Unavailable),
        ({"error": "None yet.", "code": "home_nowhere"}, StateConflict),
    ],
)
def test_refusals_of_the_node_are_shown(workspace, bob, as_user, node, answer, kind):
    node.answer = answer
    with pytest.raises(kind):
        services.make_folder(actor=bob, workspace=workspace, path="a")
    page = as_user(bob).get(url(workspace))
    assert page.status_code == 200 and "note bad" in page.content.decode()


@pytest.mark.parametrize("said", [{}, {"ok": None}, {"ok": {"entries": 1, "total": "x"}}, {"ok": []}])
def test_invalid_answer_of_the_node_shows_no_files(workspace, bob, node, said):
    node.answer = said
    assert services.listing(actor=bob, workspace=workspace).entries == ()


def test_each_download_has_its_own_ticket(workspace, bob, as_user, node, tickets):
    first = services.download_url(actor=bob, workspace=workspace, path="d/a.txt")
    second = as_user(bob).get(url(workspace, "download/?path=d&as=zip"))["Location"]
    assert first != second and first.startswith(f"{workspace.origin}/.berth/files/")
    ticket, transfer, more = tickets[0]
    assert first.endswith(ticket) and more["user_id"] == str(bob.pk)
    assert transfer.workspace == workspace.external_name and transfer.socket.startswith("files-")
    asked = node.asked[0][0]["ask"]
    assert asked["digest"] == file_tickets.digest_of(ticket) and ticket not in str(asked)
    assert (asked["what"], asked["path"]) == ("file", "d/a.txt")
    assert node.asked[1][0]["ask"]["what"] == "zip"
    with pytest.raises(InvalidInput):
        services.download_url(actor=bob, workspace=workspace, path="d", form="rar")


def test_no_file_request_goes_to_a_revoked_machine(workspace, bob, node, tickets):
    MachineFactory(pool=workspace.pool, name="node-1", state=MachineState.REVOKED)
    with pytest.raises(Unavailable):
        services.download_url(actor=bob, workspace=workspace, path="a")
    assert (node.asked, tickets) == ([], [])


def test_upload_is_limited_to_the_free_space_of_the_home(workspace, bob, node, tickets, settings):
    services.upload_url(actor=bob, workspace=workspace, path="d/a")
    assert node.asked[-1][0]["ask"]["most_bytes"] == services.UNLIMITED
    settings.BERTH_HOME_LIMIT_MIB = 100
    placed = workspace.allocations.get().node
    row = HomeUsage.objects.create(
        owner=bob, team=workspace.team, node=placed, used_mib=60, measured_at=timezone.now()
    )
    services.upload_url(actor=bob, workspace=workspace, path="d/a")
    asked = node.asked[-1][0]["ask"]
    assert (asked["most_bytes"], asked["path"], asked["name"]) == (40 << 20, "d", "a")
    for fields in ({"used_mib": 140}, {"hidden": True}):
        HomeUsage.objects.filter(pk=row.pk).update(**fields)
        services.upload_url(actor=bob, workspace=workspace, path="a")
        assert node.asked[-1][0]["ask"]["most_bytes"] == 0


def test_upload_form_posts_to_the_workspace_origin_and_returns(workspace, bob, as_user, node, tickets):
    page = as_user(bob).get(url(workspace, "upload/?path=d"))
    assert f'action="{workspace.origin}/.berth/files/' in page.content.decode()
    assert f"form-action 'self' {workspace.origin}" in page["Content-Security-Policy"]
    back = node.asked[0][0]["ask"]["back"]
    assert back.endswith(f"/workspaces/{workspace.pk}/files/?path=d")
    html = as_user(bob).get(url(workspace, "?path=d&saved=2&refused=exists&about=a")).content.decode()
    assert "2 files uploaded." in html and "already" in html
    # Text from a URL is always escaped.
    html = as_user(bob).get(url(workspace, "?saved=x&refused=<b>&about=<i>")).content.decode()
    assert "<b>" not in html and "<i>" not in html
    other = as_user(bob).get(url(workspace))
    policy = [each for each in other["Content-Security-Policy"].split("; ") if workspace.origin in each]
    assert [each.split()[0] for each in policy] == ["connect-src"], "forms do not go there from this page"


def test_entered_names_cannot_contain_a_path(workspace, bob, as_user, node):
    browser = as_user(bob)
    browser.post(url(workspace, "folder/"), {"path": "d", "name": "a/../b %2f"})
    assert node.asked[-1][0]["ask"] == {"do": "make_folder", "path": "d/a%2F..%2Fb %252f"}
    browser.post(url(workspace, "rename/"), {"path": "d/x", "name": "\u202ey"})
    assert node.asked[-1][0]["ask"] == {"do": "rename", "path": "d/x", "to": "d/%E2%80%AEy"}


def test_files_are_managed_over_rest(workspace, bob, with_token, node, tickets):
    client = with_token(bob, "workspaces:connect")
    api = f"/api/v1/workspaces/{workspace.pk}/files"
    node.answer = {"ok": {"entries": [HOSTILE], "total": 1}}
    found = client.get(f"{api}?path=d&offset=3").json()
    assert (found["total"], found["entries"][0]["path"]) == (1, f"d/{HOSTILE['id']}")
    assert client.get(f"{api}?offset=-1").status_code == 400
    assert client.get(f"{api}?path=%0A").status_code == 400
    ways = {"folders": {"path": "a"}, "rename": {"path": "a", "to": "b"}, "delete": {"paths": ["a"]}}
    for way, body in ways.items():
        assert client.post(f"{api}/{way}", body, content_type="application/json").status_code == 204
    answer = client.post(f"{api}/uploads", {"path": "a"}, content_type="application/json")
    assert answer.status_code == 201 and answer.json()["url"].endswith(tickets[0][0])
    assert with_token(bob, "workspaces:read").get(api).status_code == 403


def test_ticket_is_valid_once_for_its_workspace():
    class Redis:
        def __init__(self):
            self.kept = {}

        async def getdel(self, key):
            return self.kept.pop(key, None)

        async def get(self, key):
            return self.kept.get(key)

    name, other = f"ws-{'a' * 32}", f"ws-{'b' * 32}"
    redis = Redis()

    def keep(ticket):
        body = f'{{"workspace": "{name}", "socket": "files-{"c" * 32}.1"}}'
        redis.kept[f"berth:gw:files:{file_tickets.digest_of(ticket)}"] = body.encode()

    ticket = file_tickets.new()
    keep(ticket)
    assert file_tickets.ticket_in_path(f"/.berth/files/{ticket}") == ticket
    for path in (f"/.berth/files/{ticket}/x", "/.berth/files/", f"/x{ticket}", f"/.berth/files/{ticket}?a"):
        assert file_tickets.ticket_in_path(path) is None
    found = asyncio.run(file_tickets.redeem_ticket(redis, ticket, name))
    assert found is not None and found.socket == f"files-{'c' * 32}.1"
    assert asyncio.run(file_tickets.redeem_ticket(redis, ticket, name)) is None
    keep(ticket)
    assert asyncio.run(file_tickets.redeem_ticket(redis, ticket, other)) is None
    redis.kept = {f"berth:gw:files:{file_tickets.digest_of(ticket)}": b'{"workspace": "x"}'}
    assert asyncio.run(file_tickets.redeem_ticket(redis, ticket, name)) is None
    with pytest.raises(ValueError, match="not the name of a socket"):
        file_tickets.Transfer(name, "../../etc")


def test_folder_page_accepts_dropped_files(workspace, bob, as_user, node, tickets, settings):
    settings.BERTH_PUBLIC_URL = "https://berth.example.org/below"
    node.answer = {"ok": {"entries": [], "total": 0}}
    page = as_user(bob).get(url(workspace, "?path=a%2522b"))
    html = page.content.decode()
    assert 'data-path="a%22b"' in html and 'data-origin="https://berth.example.org"' in html
    assert f'data-tickets="/api/v1/workspaces/{workspace.pk}/files/uploads"' in html
    assert 'data-word="disk_full"' in html and "NAME" in html
    policy = page.headers["Content-Security-Policy"]
    (connect,) = (each for each in policy.split("; ") if each.startswith("connect-src"))
    assert connect.split() == ["connect-src", "'self'", "http://probe.localhost:8000", workspace.origin]
    services.upload_url(actor=bob, workspace=workspace, path="c")
    assert node.asked[-1][0]["ask"]["origin"] == "https://berth.example.org"
    services.upload_form_url(actor=bob, workspace=workspace, path="")
    assert "origin" not in node.asked[-1][0]["ask"], "a form needs none"
