"""GET /api/v1/workspaces/{id}/events, as a list and as a stream"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events import live, services, stream
from portal.common.events.kinds import AuditKind
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.api.conftest import V1, problem
from tests.api.streaming import Hints, take
from tests.factories import WorkspaceFactory, make_token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def one(bob: Any, team: Any) -> Workspace:
    workspace = WorkspaceFactory(owner=bob, team=team)
    for n in range(3):
        happen(workspace, f"event {n}")
    return workspace


def happen(workspace: Workspace, message: str) -> int:
    return services.record(
        actor=SYSTEM, kind=AuditKind.WORKSPACE_LAUNCHED, message=message, workspace=workspace
    ).pk


async def follow(
    workspace: Workspace, user: Any = None, *, path: str = "events/stream", **headers: str
) -> Any:
    """The response to a request with a new token of the user."""
    if user is not None:
        _, secret = await sync_to_async(make_token)(user)
        headers["Authorization"] = f"Bearer {secret}"
    headers.setdefault("Accept", "text/event-stream")
    return await AsyncClient().get(f"{V1}workspaces/{workspace.pk}/{path}", headers=headers)


def ids_and_messages(chunks: list[bytes]) -> list[tuple[int, str]]:
    found = []
    for block in b"".join(chunks).decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            event = json.loads(lines["data"])
            assert event["id"] == int(lines["id"])
            found.append((event["id"], event["message"]))
    return found


def test_list_is_oldest_first(api: Any, bob: Any, charlie: Any, one: Workspace) -> None:
    page = api(bob).get(f"workspaces/{one.pk}/events?page_size=2").json()

    assert [row["message"] for row in page["results"]] == ["event 0", "event 1"]
    assert page["results"][0]["actor"] == "Berth"
    assert set(page["results"][0]) == {"id", "at", "actor", "kind", "message", "data"}
    rest = api(bob).get(page["next"]).json()
    assert [row["message"] for row in rest["results"]] == ["event 2"]
    problem(api(charlie).get(f"workspaces/{one.pk}/events"), 404, "not_found")


@pytest.mark.parametrize("path", ["events", "events/", "events/stream", "events/stream/"])
async def test_stream_sends_past_and_new_events(bob: Any, one: Workspace, hints: Hints, path: str) -> None:
    response = await follow(one, bob, path=path)
    assert response.status_code == 200
    assert response["Content-Type"] == "text/event-stream"
    assert response["Cache-Control"] == "no-store"
    content = aiter(response)

    before = ids_and_messages(await take(content, b"event 2"))
    assert [message for _, message in before] == ["event 0", "event 1", "event 2"]
    assert hints.channel == live.workspace_channel(one.pk)
    assert hints.ends_with == live.account_channel(bob.pk)

    number = await sync_to_async(happen)(one, "something new")
    await hints.queue.put(True)
    assert ids_and_messages(await take(content, b"something new")) == [(number, "something new")]

    await hints.queue.put(False)
    assert await take(content, b"still here")
    await content.aclose()


async def test_stream_resumes_after_last_event_id(bob: Any, one: Workspace, hints: Hints) -> None:
    events = await sync_to_async(lambda: list(one.events.order_by("pk")))()
    response = await follow(one, bob, **{"Last-Event-ID": str(events[1].pk)})
    content = aiter(response)

    assert ids_and_messages(await take(content, b"event 2")) == [(events[2].pk, "event 2")]
    await content.aclose()


async def test_more_than_one_batch_arrives_at_once(
    bob: Any, one: Workspace, hints: Hints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BATCH", 2)
    response = await follow(one, bob)
    content = aiter(response)
    assert len(ids_and_messages(await take(content, b"event 2"))) == 3
    await content.aclose()


async def test_stream_ends_when_the_workspace_is_deleted(bob: Any, one: Workspace, hints: Hints) -> None:
    response = await follow(one, bob)
    content = aiter(response)
    await take(content, b"event 2")

    def end() -> int:
        number = happen(one, "deleted it")
        Workspace.objects.filter(pk=one.pk).update(state=State.TERMINATED)
        return number

    last = await sync_to_async(end)()
    await hints.queue.put(True)
    async with asyncio.timeout(10):
        rest = [chunk async for chunk in content]
    assert ids_and_messages(rest) == [(last, "deleted it")]
    await asyncio.wait_for(hints.left.wait(), 10)

    again = await follow(one, bob, **{"Last-Event-ID": str(last)})
    assert again.status_code == 204


async def test_stream_ends_when_the_user_loses_access(alice: Any, one: Workspace, hints: Hints) -> None:
    response = await follow(one, alice)
    content = aiter(response)
    await take(content, b"event 2")

    await sync_to_async(alice.memberships.all().delete)()
    await hints.queue.put(False)
    async with asyncio.timeout(10):
        assert [chunk async for chunk in content] == []


async def test_stream_ends_when_the_token_is_revoked(bob: Any, one: Workspace, hints: Hints) -> None:
    token, secret = await sync_to_async(make_token)(bob)
    response = await follow(one, Authorization=f"Bearer {secret}")
    content = aiter(response)
    await take(content, b"event 2")

    def revoke() -> None:
        token.revoked_at = timezone.now()
        token.save()
        happen(one, "secret")

    await sync_to_async(revoke)()
    await hints.queue.put(True)
    async with asyncio.timeout(10):
        assert [chunk async for chunk in content] == []


async def test_session_can_open_the_stream(bob: Any, one: Workspace, hints: Hints) -> None:
    client = AsyncClient()
    await client.aforce_login(bob, backend="django.contrib.auth.backends.ModelBackend")
    response = await client.get(
        f"{V1}workspaces/{one.pk}/events/stream", headers={"Accept": "text/event-stream"}
    )
    content = aiter(response)
    assert len(ids_and_messages(await take(content, b"event 2"))) == 3
    await content.aclose()


@pytest.mark.parametrize(
    ("user", "scope", "status", "code"),
    [
        ("charlie", "all", 404, "not_found"),
        ("bob", "catalog:read", 403, "permission_denied"),
        (None, "", 401, "not_authenticated"),
    ],
)
def test_permissions(
    request: pytest.FixtureRequest,
    api: Any,
    one: Workspace,
    user: str | None,
    scope: str,
    status: int,
    code: str,
) -> None:
    person = request.getfixturevalue(user) if user else None
    program = api(person, scope) if person else api(None)
    problem(program.get(f"workspaces/{one.pk}/events/stream", Accept="text/event-stream"), status, code)


@pytest.mark.parametrize("number", ["x", "-1", "9" * 30])
def test_invalid_last_event_id_is_400(api: Any, bob: Any, one: Workspace, number: str) -> None:
    response = api(bob).get(f"workspaces/{one.pk}/events/stream", **{"Last-Event-ID": number})
    problem(response, 400, "invalid")
