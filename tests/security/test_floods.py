"""Attack: a member sends requests and starts as fast as possible, to block others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis as redis_py
from django.test import Client

from portal.common import rate_limits
from portal.common.errors import TooMany
from portal.common.rate_limits import Limit
from portal.common.scopes import Scope
from portal.workspaces import services
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace
from tests.factories import make_token
from tests.workspaces.gateway.gateway_support import redis as redis
from tests.workspaces.gateway.gateway_support import redis_url as redis_url

pytestmark = pytest.mark.django_db


@pytest.fixture
def counting(redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis_py.Redis]:
    """Count limits in a separate Redis."""
    monkeypatch.setattr(rate_limits, "connection", lambda: redis)
    monkeypatch.setattr(rate_limits, "_unavailable_until", 0.0)
    monkeypatch.setattr(rate_limits, "_shares", {})
    monkeypatch.setattr(rate_limits, "_reserving", set())
    yield redis


def program(user: Any, *scopes: Scope) -> Client:
    return Client(headers={"Authorization": f"Bearer {make_token(user, *scopes)[1]}"})


def test_requests_per_user_are_limited(counting, settings, alice, bob, team, as_user):
    settings.BERTH_REQUESTS_PER_MINUTE = 5
    one, other, browser = program(alice), program(alice), as_user(alice)
    # Two tokens and a browser of one user count together.
    for client, path in ((one, "/api/v1/me"), (other, "/api/v1/me"), (browser, "/"), (one, "/api/v1/me")):
        assert client.get(path).status_code == 200
    assert browser.get("/api/v1/me").status_code == 200
    for client, path in ((one, "/api/v1/me"), (other, "/api/v1/workspaces"), (browser, "/")):
        refused = client.get(path)
        assert refused.status_code == 429
        assert 0 < int(refused["Retry-After"]) <= 60
    assert one.get("/api/v1/me").json()["code"] == "throttled"
    assert program(bob).get("/api/v1/me").status_code == 200


def test_anonymous_requests_per_address_are_limited(counting, settings, alice):
    settings.BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS = 3
    stranger = Client(REMOTE_ADDR="203.0.113.5")
    assert [stranger.get("/sign-in/").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert stranger.get("/api/v1/token-exchange").status_code == 429
    assert Client(REMOTE_ADDR="203.0.113.6").get("/sign-in/").status_code == 200
    # A signed-in user is not counted by address.
    assert program(alice).get("/api/v1/me", REMOTE_ADDR="203.0.113.5").status_code == 200
    # Health checks of load balancers continue.
    assert stranger.get("/healthz/live").status_code == 200


def test_scim_limit_is_answered_in_scim_format(counting, settings, ada):
    settings.BERTH_REQUESTS_PER_MINUTE = 1
    provider = program(ada, Scope.SCIM)
    assert provider.get("/scim/v2/Users").status_code == 200
    refused = provider.get("/scim/v2/Users")
    assert refused.status_code == 429
    assert refused["Content-Type"].startswith("application/scim+json")


def test_starts_per_user_are_limited(counting, settings, alice, bob, team, pool, make):
    settings.BERTH_STARTS_PER_MINUTE, settings.BERTH_STARTS_PER_HOUR = 2, 100
    make(alice, "sim-cpu", name="one")
    two = make(alice, "sim-cpu", name="two")
    with pytest.raises(TooMany) as refused:
        make(alice, "sim-cpu", name="three")
    assert refused.value.reason.code == WorkspaceCode.TOO_MANY_STARTS
    assert 0 < refused.value.retry_after_s <= 60
    assert not Workspace.objects.filter(name="three").exists()
    make(bob, "sim-cpu", name="three")
    # A reused key starts nothing, and stops are never refused.
    services.stop(actor=alice, workspace_id=two.pk)
    two.refresh_from_db()
    answered = program(alice).post(
        "/api/v1/workspaces",
        {"template": "jupyterlab", "flavor": "sim-cpu", "team": "vision", "name": "four"},
        content_type="application/json",
    )
    assert answered.status_code == 429
    assert answered.json()["reason"]["code"] == "too_many_starts"
    assert answered["Retry-After"]


def test_longest_wait_is_returned_and_windows_expire(counting):
    limits = (Limit(1, 60), Limit(2, 3600))
    assert rate_limits.count("x", *limits) == 0
    assert 0 < rate_limits.count("x", *limits) <= 60
    assert 60 < rate_limits.count("x", *limits) <= 3600
    counting.delete("berth:rate:x:60", "berth:rate:x:3600")
    assert rate_limits.count("x", *limits) == 0


def test_window_without_expiry_gets_a_new_one(counting):
    counting.set("berth:rate:x:60", 1000)
    assert 0 < rate_limits.count("x", Limit(1, 60)) <= 60
    assert 0 < counting.ttl("berth:rate:x:60") <= 60


def test_disabled_limits_use_no_counters(counting, settings, alice):
    settings.BERTH_REQUESTS_PER_MINUTE = settings.BERTH_STARTS_PER_MINUTE = settings.BERTH_STARTS_PER_HOUR = 0
    assert program(alice).get("/api/v1/me").status_code == 200
    assert not counting.keys("berth:rate:*")


def commands(redis: redis_py.Redis) -> int:
    calls: int = redis.info("commandstats").get("cmdstat_eval", {}).get("calls", 0)  # type: ignore[union-attr]
    return calls


def test_share_of_requests_takes_one_redis_command(counting, settings, alice):
    settings.BERTH_REQUESTS_PER_MINUTE = 1000
    client = program(alice)
    before = commands(counting)
    for _ in range(10):
        assert client.get("/api/v1/me").status_code == 200
    assert commands(counting) == before + 1
    client.get("/api/v1/me")
    assert commands(counting) == before + 2


def test_limit_is_shared_across_processes(counting, monkeypatch):
    """Each process takes shares; one that keeps asking gets all that is left."""
    processes: list[dict[Any, Any]] = [{}, {}, {}]
    let_by = 0
    for turn in range(2000):
        monkeypatch.setattr(rate_limits, "_shares", processes[turn % 3 if turn < 100 else 0])
        let_by += not rate_limits._count_by_share("user:x", 500)
    assert 500 - 2 * 5 <= let_by <= 500
    # The others use up their shares, and are refused as well.
    for shares in processes[1:]:
        monkeypatch.setattr(rate_limits, "_shares", shares)
        let_by += sum(not rate_limits._count_by_share("user:x", 500) for _ in range(20))
    assert let_by == 500


def test_threads_of_a_process_share_one_limit(counting):
    """Several threads find the share used up at once: all of them use what each then takes."""
    with ThreadPoolExecutor(8) as threads:
        waits = list(threads.map(lambda _: rate_limits._count_by_share("user:x", 500), range(2000)))
    assert waits.count(0) == 500
    assert all(0 < wait <= 60 for wait in waits if wait)


def test_refused_client_makes_no_redis_calls_until_the_window_ends(counting, settings, alice, monkeypatch):
    settings.BERTH_REQUESTS_PER_MINUTE = 1
    client = program(alice)
    assert [client.get("/api/v1/me").status_code for _ in range(3)] == [200, 429, 429]
    before = commands(counting)
    refused = client.get("/api/v1/me")
    assert refused.status_code == 429 and 0 < int(refused["Retry-After"]) <= 60
    assert commands(counting) == before
    [(key, share)] = rate_limits._shares.items()
    share.until = 0.0
    counting.delete(f"berth:rate:{key[0]}:60")
    assert client.get("/api/v1/me").status_code == 200


def test_share_expires_with_its_window(counting):
    assert rate_limits._count_by_share("user:x", 1000) == 0
    [share] = rate_limits._shares.values()
    assert share.left == 9
    share.until = 0.0
    counting.delete("berth:rate:user:x:60")
    assert rate_limits._count_by_share("user:x", 1000) == 0
    assert counting.get("berth:rate:user:x:60") == b"10"


def test_requests_pass_without_redis_and_it_is_not_retried_each_time(settings, alice, monkeypatch):
    settings.BERTH_REQUESTS_PER_MINUTE = settings.BERTH_STARTS_PER_MINUTE = 1
    asked = []

    class Away:
        def eval(self, *_: object) -> int:
            asked.append(1)
            raise redis_py.ConnectionError("refused")

    monkeypatch.setattr(rate_limits, "connection", Away)
    monkeypatch.setattr(rate_limits, "_unavailable_until", 0.0)
    monkeypatch.setattr(rate_limits, "_shares", {})
    client = program(alice)
    assert [client.get("/api/v1/me").status_code for _ in range(10)] == [200] * 10
    assert len(asked) == 1
