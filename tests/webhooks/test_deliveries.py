"""Deliveries to receivers that answer well, slowly, wrongly or not at all."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
import socket
import threading
import time

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, Notification
from portal.notify.webhooks import deliveries, fan_out, services
from portal.notify.webhooks.models import Attempt, Delivery, DeliveryState, Endpoint, Outbox
from tests import sites
from tests.factories import WorkspaceFactory
from tests.receivers import LIMIT_S, one_after_another, receiver, status
from tests.webhooks.conftest import round_trip

pytestmark = pytest.mark.django_db
WORLD = sites.people


def signatures_of(secret: str, request) -> str:
    """Compute signatures from the specification, without the signing library."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    head = request.headers
    signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + request.body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def due_now(**fields) -> None:
    past = timezone.now() - dt.timedelta(seconds=1)
    Delivery.objects.filter(due_at__isnull=False).update(due_at=past, **fields)
    Endpoint.objects.update(not_before=None)


def test_event_is_delivered_signed(hook, tell, receiving, team, alice):
    made = services.create(
        actor=alice, team=team, name="Bot", url=f"{receiving.url}/x?y=1", types=["team.members_changed"]
    )
    fan_out.run()
    tell(data={"username": "bob", "role": "owner", "secret": "not for others"})
    (delivery,) = round_trip()
    (request,) = receiving.requests
    assert request.path == "/x?y=1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == delivery.message_id
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < LIMIT_S
    assert request.headers["webhook-signature"] == signatures_of(made.secret, request)
    body = json.loads(request.body)
    entry = Event.objects.get(kind=AuditKind.TEAM_MEMBER_SET)
    assert body["type"] == "team.members_changed"
    assert dt.datetime.fromisoformat(body["timestamp"]) == entry.at.replace(
        microsecond=entry.at.microsecond // 1000 * 1000
    )
    assert body["data"] == {
        "entry": entry.pk,
        "action": "team.member_set",
        "actor": "Berth",
        "team": {"slug": "vision", "url": "http://localhost:8000/api/v1/teams/vision"},
        "user": {"username": "bob"},
        "role": "owner",
    }
    assert (delivery.state, delivery.due_at) == (DeliveryState.DELIVERED, None)
    assert Attempt.objects.get().status_code == 200


def test_workspace_event_contains_a_link(hook, tell, receiving, team, bob):
    workspace = WorkspaceFactory(owner=bob, team=team, name="paper")
    hook(receiving.url, "workspace.failed")
    tell(
        AuditKind.WORKSPACE_FAIL,
        workspace=workspace,
        cause={"code": "reported", "params": {"text": "/secret/path"}},
        data={"from": "provisioning", "to": "terminating", "reason": "start_failed", "code": "no_image"},
    )
    round_trip()
    data = json.loads(receiving.requests[0].body)["data"]
    assert data["workspace"] == {
        "id": str(workspace.pk),
        "name": "paper",
        "url": f"http://localhost:8000/api/v1/workspaces/{workspace.pk}",
    }
    assert (data["from"], data["to"], data["code"]) == ("provisioning", "terminating", "no_image")
    assert b"secret" not in receiving.requests[0].body


def test_only_selected_events_of_the_own_team_are_delivered(hook, tell, receiving, charlie):
    hook(receiving.url, "workspace.failed")
    tell()
    tell(AuditKind.WORKSPACE_FAIL, team=charlie.teams.get())
    tell(AuditKind.WORKSPACE_FAIL)
    (delivery,) = round_trip()
    assert delivery.type == "workspace.failed"
    assert len(receiving.requests) == 1


def test_site_webhook_gets_events_of_all_teams(hook, tell, receiving, olga, charlie):
    hook(receiving.url, "workspace.failed", "gpu_check.failed", actor=olga, team=None)
    tell(AuditKind.WORKSPACE_FAIL)
    tell(AuditKind.WORKSPACE_FAIL, team=charlie.teams.get())
    tell(AuditKind.DEVICE_CHECK_HUNG, team=None)
    assert [each.type for each in round_trip()] == [
        "workspace.failed",
        "workspace.failed",
        "gpu_check.failed",
    ]


def test_events_before_the_webhook_are_not_delivered(hook, tell, receiving):
    tell()
    hook(receiving.url)
    assert round_trip() == []


def test_rolled_back_event_is_not_delivered(hook, tell, receiving):
    hook(receiving.url)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tell()
        raise ZeroDivisionError
    assert round_trip() == []


def test_failed_delivery_is_retried(hook, tell, receiving, clock):
    receiving.answer = one_after_another(status(500, b"broken"), status(204))
    hook(receiving.url)
    tell()
    (delivery,) = round_trip()
    assert delivery.state == DeliveryState.PENDING
    wait = (delivery.due_at - timezone.now()).total_seconds()
    assert 0 < wait <= deliveries.WAITS_S[0]
    assert Endpoint.objects.get().failing_since
    assert round_trip()[0].attempt_count == 1  # not due yet
    due_now()
    (delivery,) = round_trip()
    assert delivery.state == DeliveryState.DELIVERED
    assert [attempt.status_code for attempt in delivery.attempts.all()] == [500, 204]
    assert delivery.attempts.all()[0].answer == "broken"
    assert Endpoint.objects.get().failing_since is None
    first, second = receiving.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


def test_delivery_fails_after_a_day_and_can_be_redelivered(hook, tell, receiving, alice):
    receiving.answer = status(500)
    hook(receiving.url)
    tell()
    fan_out.run()
    assert 22 * 3600 < sum(deliveries.WAITS_S) < 26 * 3600
    for number in range(1, deliveries.MAX_ATTEMPTS + 1):
        due_now()
        (delivery,) = round_trip()
        assert delivery.attempt_count == number
    assert (delivery.state, delivery.due_at) == (DeliveryState.FAILED, None)
    assert round_trip()[0].attempt_count == deliveries.MAX_ATTEMPTS
    receiving.answer = None
    services.redeliver(actor=alice, delivery=delivery)
    (delivery,) = round_trip()
    assert delivery.state == DeliveryState.DELIVERED
    assert len({request.headers["webhook-id"] for request in receiving.requests}) == 1


def test_test_event_is_sent_once_and_shows_the_response(hook, receiving, alice):
    receiving.answer = status(403, b"who are you?" + b"x" * 5000)
    endpoint = hook(receiving.url)
    services.send_test(actor=alice, endpoint=endpoint)
    (delivery,) = round_trip()
    assert delivery.state == DeliveryState.FAILED
    attempt = delivery.attempts.get()
    assert attempt.status_code == 403
    assert attempt.answer.startswith("who are you?")
    assert len(attempt.answer) == 1024
    assert json.loads(receiving.requests[0].body)["type"] == "berth.test"


def test_redirects_are_not_followed(hook, tell, receiving):
    with receiver() as inside:
        receiving.answer = status(302, Location=f"{inside.url}/admin")
        hook(receiving.url)
        tell()
        (delivery,) = round_trip()
        assert delivery.attempts.get().status_code == 302
        assert delivery.state == DeliveryState.PENDING
        assert inside.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost:{port}/",
        "http://localhost:{port}/",
        "https://localtest.example:{port}/",
    ],
)
def test_host_resolving_to_loopback_is_refused(hook, tell, receiving, settings, monkeypatch, url):
    _leads_to(monkeypatch, "127.0.0.1")
    settings.BERTH_OUTGOING_ALLOW = []
    hook(url.format(port=receiving.port))
    tell()
    (delivery,) = round_trip()
    attempt = delivery.attempts.get()
    assert (attempt.status_code, attempt.error) == (None, "refused_address")
    assert receiving.requests == []


def _leads_to(monkeypatch, *addresses: str) -> list[str]:
    """Resolve to one address after another, repeating the last. Returns the queries."""
    asked, left = [], list(addresses)

    def resolver(host, port, *_, **__):
        asked.append(host)
        address = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    return asked


def test_dns_rebinding_is_prevented(hook, tell, receiving, monkeypatch):
    """The first answer is allowed, the next an internal address: only the first is used."""
    asked = _leads_to(monkeypatch, "127.0.0.1", "10.0.0.1")
    hook(f"http://rebinding.example:{receiving.port}/")
    tell()
    (delivery,) = round_trip()
    assert delivery.state == DeliveryState.DELIVERED
    assert asked == ["rebinding.example"]
    assert receiving.requests[0].headers["host"] == f"rebinding.example:{receiving.port}"


def test_a_proxy_of_the_environment_is_not_used(hook, tell, receiving, monkeypatch):
    with receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        hook(receiving.url)
        tell()
        round_trip()
        assert (len(receiving.requests), proxy.requests) == (1, [])


def test_refused_connection_is_recorded(hook, tell):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        hook(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        tell()
        (delivery,) = round_trip()
    assert delivery.attempts.get().error == "connection"
    endpoint = Endpoint.objects.get()
    assert endpoint.timeouts == 1
    assert endpoint.not_before > timezone.now()


def test_silent_receiver_does_not_delay_others(hook, tell, receiving, monkeypatch):
    # Time enough for responding receivers, also on a busy machine.
    monkeypatch.setattr(deliveries, "REQUEST_S", 4.0)
    with receiver() as silent:
        silent.answer = lambda _received, _handler: silent.over.wait(LIMIT_S)
        slow = [hook(silent.url, name=f"Slow {number}") for number in range(4)]
        quick = hook(receiving.url, name="Quick")
        for _ in range(5):
            tell()
        round_trip()
        assert len(receiving.requests) == 5
        assert quick.deliveries.filter(state=DeliveryState.DELIVERED).count() == 5
        for endpoint in slow:
            # One failed attempt suffices: the others wait until it is retried.
            (attempt,) = Attempt.objects.filter(delivery__endpoint=endpoint)
            assert attempt.error == "timeout"


def test_slow_response_does_not_extend_the_timeout(hook, tell, receiving, monkeypatch):
    monkeypatch.setattr(deliveries, "REQUEST_S", 1.0)

    def drip(_received, handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b".")
            handler.wfile.flush()
            if receiving.over.wait(0.2):
                return

    receiving.answer = drip
    hook(receiving.url)
    tell()
    (delivery,) = round_trip()
    assert delivery.attempts.get().error == "timeout"


def test_suspect_endpoints_never_exceed_their_threads(hook, tell, monkeypatch):
    monkeypatch.setattr(deliveries, "REQUEST_S", 1.0)
    most, now, lock = [0], [0], threading.Lock()
    send = deliveries._send

    # Counted at the sender, since the receiver may hold responses longer.
    def counted(endpoint, delivery):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            return send(endpoint, delivery)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(deliveries, "_send", counted)
    with receiver() as silent:
        silent.answer = lambda _received, _handler: silent.over.wait(1.2)
        for number in range(6):
            hook(silent.url, name=f"Slow {number}")
        Endpoint.objects.update(timeouts=3)
        tell()
        round_trip()
        assert len(silent.requests) == 6
    assert most[0] == deliveries.SUSPECT_THREADS


def test_worker_killed_during_a_delivery_loses_no_event(hook, tell, receiving):
    """Its claimed delivery is due again, and arrives under the same id."""
    endpoint = hook(receiving.url)
    tell()
    fan_out.run()
    claimed = deliveries._claim(endpoint)
    deliveries._send(endpoint, claimed)  # it is killed here: nothing is written
    assert Attempt.objects.count() == 0
    assert round_trip()[0].state == DeliveryState.PENDING
    due_now()
    (delivery,) = round_trip()
    assert delivery.state == DeliveryState.DELIVERED
    assert [request.headers["webhook-id"] for request in receiving.requests] == [delivery.message_id] * 2


def test_delivery_ends_when_killed_in_the_last_attempt(hook, tell, receiving):
    hook(receiving.url)
    tell()
    fan_out.run()
    due_now(attempt_count=deliveries.MAX_ATTEMPTS)
    (delivery,) = round_trip()
    assert (delivery.state, delivery.due_at) == (DeliveryState.FAILED, None)
    assert receiving.requests == []


def test_two_workers_do_not_send_the_same_delivery(hook, tell, receiving):
    endpoint = hook(receiving.url)
    tell()
    fan_out.run()
    first = deliveries._claim(endpoint)
    assert first is not None
    assert deliveries._claim(endpoint) is None
    Outbox.objects.update(busy_until=timezone.now() + dt.timedelta(seconds=30))
    assert deliveries.run() == 0
    Outbox.objects.update(busy_until=timezone.now() - dt.timedelta(seconds=1))
    due_now()
    assert deliveries.run() == 1
    assert Outbox.objects.get().busy_until is None


def test_audit_entry_makes_one_delivery(hook, tell, receiving):
    hook(receiving.url)
    tell()
    assert fan_out.run() == 1
    assert fan_out.run() == 0
    # If the cursor were reset, the database would refuse a second one.
    Outbox.objects.update(last_id=0)
    with pytest.raises(IntegrityError), transaction.atomic():
        fan_out.run()


def test_rotated_webhook_signs_with_both_secrets_for_a_day(hook, tell, receiving, team, alice, clock):
    made = services.create(
        actor=alice, team=team, name="Bot", url=receiving.url, types=["team.members_changed"]
    )
    fan_out.run()
    again = services.rotate_secret(actor=alice, endpoint=made.endpoint)
    assert again.secret != made.secret
    tell()
    round_trip()
    request = receiving.requests[-1]
    new, old = request.headers["webhook-signature"].split(" ")
    assert (new, old) == (signatures_of(again.secret, request), signatures_of(made.secret, request))
    clock.shift(services.OVERLAP.total_seconds() + 1)
    tell()
    round_trip()
    request = receiving.requests[-1]
    assert request.headers["webhook-signature"] == signatures_of(again.secret, request)


def test_another_portal_secret_key_requires_the_old_one_as_fallback(hook, tell, receiving, settings):
    """With the old key as a fallback deliveries continue; without it they fail with a message."""
    hook(receiving.url)
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another secret key for tests, of some length"
    settings.SECRET_KEY_FALLBACKS = [before]
    tell()
    assert round_trip()[0].state == DeliveryState.DELIVERED
    settings.SECRET_KEY_FALLBACKS = []
    tell()
    assert round_trip()[-1].attempts.get().error == "secret_unreadable"
    assert len(receiving.requests) == 1


def test_endpoint_failing_for_days_is_disabled_and_owners_notified(
    hook, tell, receiving, alice, bob, settings
):
    receiving.answer = status(500)
    endpoint = hook(receiving.url)
    tell()
    round_trip()
    assert Endpoint.objects.get().enabled
    past = timezone.now() - dt.timedelta(days=settings.BERTH_WEBHOOK_DISABLE_DAYS, hours=1)
    Endpoint.objects.update(failing_since=past)
    due_now()
    round_trip()
    assert not Endpoint.objects.get().enabled
    (notice,) = Notification.objects.filter(kind="webhook.disabled")
    assert (notice.user, notice.url) == (alice, f"/webhooks/{endpoint.pk}/")
    assert Event.objects.filter(kind=AuditKind.WEBHOOK_DISABLED, team=endpoint.team).exists()
    due_now()
    before = len(receiving.requests)
    round_trip()
    assert len(receiving.requests) == before
    receiving.answer = None
    services.change(actor=alice, endpoint=endpoint, enabled=True)
    assert round_trip()[0].state == DeliveryState.DELIVERED


def test_status_410_disables_the_endpoint(hook, tell, receiving):
    receiving.answer = status(410)
    hook(receiving.url)
    tell()
    round_trip()
    assert not Endpoint.objects.get().enabled


def test_endpoint_deleted_during_a_delivery(hook, tell, receiving):
    endpoint = hook(receiving.url)
    tell()
    fan_out.run()
    claimed = deliveries._claim(endpoint)
    outcome = deliveries._send(endpoint, claimed)
    Endpoint.objects.all().delete()
    deliveries._finish(endpoint, claimed, outcome)
    assert Attempt.objects.count() == 0


def test_old_deliveries_are_deleted(hook, tell, receiving, settings):
    hook(receiving.url)
    tell()
    tell()
    first, _second = round_trip()
    old = timezone.now() - dt.timedelta(days=settings.BERTH_WEBHOOK_KEEP_DAYS, hours=1)
    Delivery.objects.filter(pk=first.pk).update(created_at=old)
    assert deliveries.prune() == 1
    assert Delivery.objects.exclude(pk=first.pk).count() == Attempt.objects.count() == 1


def test_unreachable_receiver_does_not_fill_the_disk(hook, tell, receiving, monkeypatch):
    monkeypatch.setattr(fan_out, "MAX_PENDING", 2)
    hook(receiving.url)
    for _ in range(4):
        tell()
        fan_out.run()
    assert Delivery.objects.count() == 2


def test_sweep_sends_without_redis(hook, receiving, alice, monkeypatch):
    monkeypatch.setattr(services.app, "send_task", _no_broker)
    services.send_test(actor=alice, endpoint=hook(receiving.url))
    assert round_trip()[0].state == DeliveryState.DELIVERED


def _no_broker(*_: object, **__: object) -> None:
    raise ConnectionError("Redis is away")


def test_many_entries_are_read_in_ordered_batches(hook, tell, receiving, monkeypatch):
    monkeypatch.setattr(fan_out, "BATCH", 3)
    hook(receiving.url)
    for _ in range(8):
        tell()
    assert fan_out.run() == 8
    assert Outbox.objects.get().last_id == Event.objects.latest("pk").pk


def test_account_event_for_administrators_has_the_user(receiving, hook, tell, ada):
    hook(receiving.url, "user.deactivated", actor=ada, team=None)
    tell(AuditKind.USER_DEACTIVATED, team=None, data={"username": "bob"}, actor=SYSTEM)
    round_trip()
    assert json.loads(receiving.requests[0].body)["data"]["user"] == {"username": "bob"}
