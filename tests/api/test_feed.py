"""GET /api/v1/events and /api/v1/events/stream: all events visible to the user."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.test import AsyncClient
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from portal.common.actors import SYSTEM
from portal.common.events import feed, live
from portal.common.events.event_types import TYPE_OF_KIND
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, TargetKind
from portal.common.events.services import Target, record
from portal.notify.webhooks import payloads
from portal.people.accounts.models import Membership, Role
from portal.web.event_feed import selectors
from tests.api.conftest import V1, problem
from tests.api.streaming import Hints, take
from tests.factories import TeamFactory, UserFactory, WorkspaceFactory, make_token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "_frontier", feed.Position())


def happen(kind: AuditKind, **about: Any) -> int:
    return record(actor=SYSTEM, kind=kind, message="did something", **about).pk


@pytest.fixture
def happened(alice: Any, bob: Any, team: Any, pool: Any) -> dict[str, int]:
    """One event per audience, and one without a type."""
    other = TeamFactory(slug="other")
    mine = WorkspaceFactory(owner=bob, team=team, name="mine")
    hers = WorkspaceFactory(owner=alice, team=team, name="hers")
    Event.objects.all().delete()
    return {
        "mine": happen(AuditKind.WORKSPACE_READY, workspace=mine, data={"from": "starting", "secret": "x"}),
        "untyped": happen(AuditKind.WORKSPACE_LAUNCHED, workspace=mine),
        "hers": happen(AuditKind.WORKSPACE_STOPPED, workspace=hers),
        "quota": happen(AuditKind.QUOTA_SET, team=team, data={"resource": "workspaces"}),
        "elsewhere": happen(AuditKind.QUOTA_SET, team=other),
        "device": happen(AuditKind.DEVICE_CORDONED, pool=pool, targets=[Target(TargetKind.DEVICE, "GPU-1")]),
        "account": happen(AuditKind.SESSION_LOCKED_OUT, data={"username": "eve"}),
    }


def test_gateway_process_sends_portal_urls(happened: dict[str, int], team: Any, settings: Any) -> None:
    """The gateway process serves the stream and has no other URLs."""
    number = str(uuid.uuid4())
    happen(
        AuditKind.QUOTA_SET,
        team=team,
        targets=[Target(TargetKind.QUOTA_REQUEST, number)],
        data={"reservation": number},
    )
    events = Event.objects.filter(kind__in=TYPE_OF_KIND).order_by("pk")
    settings.ROOT_URLCONF = "portal.stream_urls"
    shown = [payloads.entry_payload(event)["data"] for event in events]
    settings.ROOT_URLCONF = "portal.urls"
    urls = {
        subject: each["url"]
        for data in shown
        for subject, each in data.items()
        if isinstance(each, dict) and "url" in each
    }
    assert urls.keys() == {"workspace", "team", "pool", "quota_request", "reservation"}
    for subject, url in urls.items():
        assert url.startswith(settings.BERTH_PUBLIC_URL)
        name = resolve(url.removeprefix(settings.BERTH_PUBLIC_URL)).view_name
        assert name == f"api:{subject.replace('_', '-')}-detail"


def listed_events(api: Any, user: Any, happened: dict[str, int], query: str = "") -> list[str]:
    names = {number: name for name, number in happened.items()}
    answer = api(user).get(f"events{query}")
    assert answer.status_code == 200, answer.content
    return [names[row["id"]] for row in answer.json()["results"]]


def test_events_are_limited_to_what_the_reader_may_see(
    api: Any, alice: Any, bob: Any, charlie: Any, olga: Any, team: Any, happened: dict[str, int]
) -> None:
    ada = UserFactory(username="ada", is_superuser=True)
    una = UserFactory(username="una", is_auditor=True)
    vic = UserFactory(username="vic")
    Membership.objects.create(user=vic, team=team, role=Role.VIEWER)

    assert listed_events(api, charlie, happened) == []
    assert listed_events(api, bob, happened) == ["mine"]
    assert listed_events(api, alice, happened) == ["mine", "hers", "quota"]
    assert listed_events(api, vic, happened) == ["mine", "hers", "quota"]
    assert listed_events(api, olga, happened) == ["mine", "hers", "quota", "elsewhere", "device"]
    everything = ["mine", "hers", "quota", "elsewhere", "device", "account"]
    assert listed_events(api, ada, happened) == everything
    names = {number: name for name, number in happened.items()}
    rows = api(una, "events:read").get("events").json()["results"]
    assert [names[row["id"]] for row in rows] == everything
    problem(api(alice, "workspaces:read").get("events"), 403, "permission_denied")


def test_event_has_the_payload_of_a_webhook(api: Any, bob: Any, happened: dict[str, int]) -> None:
    (row,) = api(bob, "events:read").get("events").json()["results"]
    assert (row["id"], row["type"]) == (happened["mine"], "workspace.started")
    assert row["data"]["workspace"]["name"] == "mine"
    assert row["data"]["from"] == "starting"
    assert "secret" not in row["data"]
    assert row["data"]["actor"] == "Berth"


def test_pages_and_filters(api: Any, olga: Any, happened: dict[str, int]) -> None:
    assert listed_events(api, olga, happened, f"?after={happened['hers']}") == [
        "quota",
        "elsewhere",
        "device",
    ]
    assert listed_events(api, olga, happened, f"?after={happened['account']}") == []
    assert listed_events(api, olga, happened, "?type=workspace.started&type=device.state_changed") == [
        "mine",
        "device",
    ]
    assert listed_events(api, olga, happened, "?team=other") == ["elsewhere"]
    assert listed_events(api, olga, happened, "?sort=-id&page_size=2") == ["device", "elsewhere"]
    page = api(olga).get("events?page_size=3").json()
    assert [row["id"] for row in api(olga).get(page["next"]).json()["results"]] == [
        happened["elsewhere"],
        happened["device"],
    ]
    for wrong in ("after=-1", "after=1.5", "after=x", "type=no.such", "workspace=x", "nonsense=1"):
        problem(api(olga).get(f"events?{wrong}"), 400, "invalid")


def test_query_count_is_constant(api: Any, olga: Any, team: Any, bob: Any) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as ran:
            assert api(olga).get("events?page_size=200").status_code == 200
        return len(ran)

    client = api(olga)
    assert client.get("events").status_code == 200
    for _ in range(2):
        happen(AuditKind.WORKSPACE_READY, workspace=WorkspaceFactory(owner=bob, team=team))
    few = queries()
    for _ in range(20):
        happen(AuditKind.WORKSPACE_READY, workspace=WorkspaceFactory(owner=bob, team=team))
    assert queries() == few


def test_events_after_an_open_gap_are_held_back(
    api: Any, olga: Any, happened: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on PostgreSQL, while the transaction of "hers" is open.
    late = Event.objects.get(pk=happened["hers"])
    late.delete()
    monkeypatch.setattr(feed, "_settle", lambda cursor: False)
    monkeypatch.setattr(selectors, "_frontier", feed.Position(last_id=happened["mine"] - 1))
    assert listed_events(api, olga, happened) == ["mine"]
    late.pk, late._state.adding = happened["hers"], True
    late.save()
    assert listed_events(api, olga, happened) == ["mine", "hers", "quota", "elsewhere", "device"]


def test_entry_committed_late_is_not_skipped(happened: dict[str, int]) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("writers follow each other on SQLite: no entry appears before another")
    assert selectors.last_complete_id() == happened["account"]
    written, go_on = threading.Event(), threading.Event()

    def slow_writer() -> None:
        try:
            with transaction.atomic():
                happen(AuditKind.QUOTA_SET)
                written.set()
                assert go_on.wait(20)
        finally:
            connections.close_all()

    thread = threading.Thread(target=slow_writer)
    thread.start()
    assert written.wait(20)
    later = happen(AuditKind.QUOTA_SET)
    assert selectors.last_complete_id() == happened["account"]
    go_on.set()
    thread.join(20)
    assert selectors.last_complete_id() == later


def test_permanent_gap_does_not_delay_events(api: Any, olga: Any, happened: dict[str, int]) -> None:
    Event.objects.filter(pk=happened["hers"]).delete()
    assert listed_events(api, olga, happened) == ["mine", "quota", "elsewhere", "device"]


def test_last_complete_id_follows_a_shortened_log(olga: Any, happened: dict[str, int]) -> None:
    assert selectors.last_complete_id() == happened["account"]
    Event.objects.filter(pk__gt=happened["untyped"]).delete()
    assert selectors.last_complete_id() == happened["untyped"]
    Event.objects.all().delete()
    assert selectors.last_complete_id() == 0


def test_long_logs_are_searched_in_strides(
    olga: Any, happened: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "STRIDE", 2)
    assert selectors.last_complete_id() == happened["account"]


async def follow(user: Any, query: str = "", **headers: str) -> Any:
    _, secret = await sync_to_async(make_token)(user)
    headers |= {"Authorization": f"Bearer {secret}", "Accept": "text/event-stream"}
    return await AsyncClient().get(f"{V1}events/stream{query}", headers=headers)


def messages(chunks: list[bytes]) -> list[tuple[str, int]]:
    found = []
    for block in b"".join(chunks).decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            row = json.loads(lines["data"])
            assert (lines["event"], int(lines["id"])) == (row["type"], row["id"])
            found.append((row["type"], row["id"]))
    return found


async def test_stream_starts_with_the_next_event(bob: Any, happened: dict[str, int], hints: Hints) -> None:
    response = await follow(bob)
    assert (response.status_code, response["Content-Type"]) == (200, "text/event-stream")
    content = aiter(response)
    assert not messages(await take(content, b"still here"))
    assert hints.channel == live.FEED_CHANNEL

    mine = await sync_to_async(lambda: Event.objects.get(pk=happened["mine"]).workspace)()
    await sync_to_async(happen)(AuditKind.DEVICE_CORDONED)
    number = await sync_to_async(happen)(AuditKind.WORKSPACE_STOPPED, workspace=mine)
    await hints.queue.put(True)
    assert messages(await take(content, b"workspace.stopped")) == [("workspace.stopped", number)]
    await content.aclose()


async def test_stream_resumes_after_last_event_id(olga: Any, happened: dict[str, int], hints: Hints) -> None:
    response = await follow(olga, "?type=quota.changed", **{"Last-Event-ID": "0"})
    content = aiter(response)
    found = messages(await take(content, f"id: {happened['elsewhere']}\n".encode()))
    assert [number for _, number in found] == [happened["quota"], happened["elsewhere"]]
    await content.aclose()

    response = await follow(olga, "?type=quota.changed", **{"Last-Event-ID": str(happened["quota"])})
    content = aiter(response)
    found = messages(await take(content, f"id: {happened['elsewhere']}\n".encode()))
    assert [number for _, number in found] == [happened["elsewhere"]]
    await content.aclose()


async def test_revoked_right_ends_events(
    bob: Any, alice: Any, team: Any, happened: dict[str, int], hints: Hints
) -> None:
    response = await follow(alice, **{"Last-Event-ID": str(happened["quota"])})
    content = aiter(response)
    assert not messages(await take(content, b"still here"))
    await sync_to_async(Membership.objects.filter(user=alice).update)(role=Role.MEMBER)
    await sync_to_async(happen)(AuditKind.QUOTA_SET, team=team)
    await hints.queue.put(True)
    assert not messages(await take(content, b"still here"))
    alice.is_active = False
    await sync_to_async(alice.save)()
    await hints.queue.put(True)
    assert [chunk async for chunk in content] == []


@pytest.mark.parametrize("query", ["?type=no.such", "?workspace=x", "?after=3"])
def test_invalid_stream_parameters_are_400(api: Any, bob: Any, query: str) -> None:
    problem(api(bob).get(f"events/stream{query}", Accept="text/event-stream"), 400, "invalid")
    problem(
        api(bob).get("events/stream", **{"Accept": "text/event-stream", "Last-Event-ID": "x"}),
        400,
        "invalid",
    )
