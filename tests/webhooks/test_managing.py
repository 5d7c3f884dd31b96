"""Managing webhooks: permissions, refusals, and what pages and REST show."""

from __future__ import annotations

import logging
import re

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common.encrypted_fields import decrypt
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.event_types import TYPE_OF_KIND, TYPES, Audience
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.notify.type_choices import SUBJECTS
from portal.notify.webhooks import selectors, services
from portal.notify.webhooks.codes import WebhookCode
from portal.notify.webhooks.models import Delivery, Endpoint
from portal.people.accounts.models import Membership, Role
from tests import sites
from tests.api.conftest import problem
from tests.receivers import status
from tests.webhooks.conftest import round_trip

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.people
BODY = {"name": "Bot", "url": "https://example.org/hooks", "types": ["workspace.failed"]}


def test_every_kind_has_one_type_with_a_known_subject():
    kinds = [kind for each in TYPES.values() for kind in each.kinds]
    assert len(kinds) == len(set(kinds)) == len(TYPE_OF_KIND)
    assert {each.subject for each in TYPES.values()} == set(SUBJECTS)
    for each in TYPES.values():
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", each.name)


def test_the_document_lists_every_type():
    text = (settings.BASE_DIR / "docs" / "webhooks.md").read_text()
    assert [name for name in TYPES if f"`{name}`" not in text] == []


def test_the_secret_is_shown_once_and_kept_encrypted(team, alice):
    made = services.create(actor=alice, team=team, **BODY)
    row = Endpoint.objects.get()
    assert made.secret not in row.secret
    assert decrypt(row.secret, purpose=services.SECRET) == made.secret
    assert made.secret not in repr(made)


def test_secret_and_path_are_not_logged_or_audited(hook, tell, receiving, caplog, team, alice):
    caplog.set_level(logging.DEBUG)
    receiving.answer = status(500)
    made = services.create(
        actor=alice, team=team, name="Bot", url=f"{receiving.url}/token-7f3a", types=["team.members_changed"]
    )
    services.rotate_secret(actor=alice, endpoint=made.endpoint)
    services.send_test(actor=alice, endpoint=made.endpoint)
    round_trip()
    written = caplog.text + str(list(Event.objects.values()))
    assert "whsec_" not in written
    assert "token-7f3a" not in written


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"name": "  "}, "name", WebhookCode.NAMELESS),
        ({"url": "ftp://example.org"}, "url", WebhookCode.URL_SCHEME),
        ({"url": "https://10.0.0.1/"}, "url", WebhookCode.URL_INTERNAL),
        ({"url": "https://a:b@example.org/"}, "url", WebhookCode.URL_CREDENTIALS),
        ({"url": "nonsense"}, "url", WebhookCode.URL_SCHEME),
        ({"types": ["nonsense"]}, "types", WebhookCode.UNKNOWN_TYPES),
        # Site webhooks do not belong to a team.
        ({"types": ["workspace.failed", "gpu_check.failed"]}, "types", WebhookCode.UNKNOWN_TYPES),
        ({"types": ["user.deactivated"]}, "types", WebhookCode.UNKNOWN_TYPES),
        ({"types": []}, "types", WebhookCode.CHOOSE_TYPES),
    ],
)
def test_invalid_webhooks_are_refused(team, alice, change, field, code):
    with pytest.raises(InvalidInput) as refused:
        services.create(actor=alice, team=team, **{**BODY, **change})
    assert [each.code for each in refused.value.extra["errors"][field]] == [code]
    made = services.create(actor=alice, team=team, **BODY).endpoint
    with pytest.raises(InvalidInput):
        services.change(actor=alice, endpoint=made, **change)


def test_members_and_outsiders_cannot_manage_webhooks(team, alice, bob, charlie, api):
    made = services.create(actor=alice, team=team, **BODY).endpoint
    for actor in (bob, charlie):
        with pytest.raises(NotAllowed):
            services.create(actor=actor, team=team, **BODY)
        with pytest.raises(NotAllowed):
            services.change(actor=actor, endpoint=made, url="https://evil.example/")
        with pytest.raises(NotAllowed):
            services.rotate_secret(actor=actor, endpoint=made)
    with pytest.raises(NotAllowed):
        selectors.endpoint_by_id(bob, made.pk)
    with pytest.raises(NotFound):
        selectors.endpoint_by_id(charlie, made.pk)
    # An owner of another team has no access.
    problem(
        api(charlie).send("PATCH", f"webhooks/{made.pk}", {"url": "https://evil.example/"}), 404, "not_found"
    )


def test_former_owner_cannot_manage_webhooks(team, alice, bob):
    made = services.create(actor=alice, team=team, **BODY).endpoint
    Membership.objects.filter(user=bob).update(role=Role.OWNER)
    Membership.objects.filter(user=alice).update(role=Role.MEMBER)
    with pytest.raises(NotAllowed):
        services.change(actor=alice, endpoint=made, enabled=False)
    services.change(actor=bob, endpoint=made, enabled=False)


def test_operators_cannot_subscribe_to_account_events(ada, olga, team):
    with pytest.raises(NotAllowed) as refused:
        services.create(actor=olga, team=None, **{**BODY, "types": ["user.deactivated"]})
    assert refused.value.reason.code is WebhookCode.ADMINISTRATORS_TYPES
    made = services.create(
        actor=ada, team=None, **{**BODY, "types": ["user.deactivated", "workspace.failed"]}
    )
    # Not by another URL, its secret or its log.
    for attack in (
        lambda: services.change(actor=olga, endpoint=made.endpoint, url="https://olga.example/"),
        lambda: services.change(actor=olga, endpoint=made.endpoint, types=["workspace.failed"]),
        lambda: services.rotate_secret(actor=olga, endpoint=made.endpoint),
        lambda: services.delete(actor=olga, endpoint=made.endpoint),
        lambda: selectors.endpoint_by_id(olga, made.endpoint.pk),
    ):
        with pytest.raises(NotAllowed):
            attack()
    assert list(selectors.endpoints_of(olga, None)) == []
    assert selectors.endpoints_of(ada, None).count() == 1


def test_webhooks_per_team_are_limited(team, alice, monkeypatch):
    monkeypatch.setattr(services, "MAX_OF_TEAM", 1)
    services.create(actor=alice, team=team, **BODY)
    with pytest.raises(StateConflict) as refused:
        services.create(actor=alice, team=team, **BODY)
    assert refused.value.code == "too_many_webhooks"


def test_one_test_at_a_time_and_none_for_a_disabled_webhook(hook, receiving, alice):
    endpoint = hook(receiving.url)
    services.send_test(actor=alice, endpoint=endpoint)
    with pytest.raises(StateConflict):
        services.send_test(actor=alice, endpoint=endpoint)
    services.change(actor=alice, endpoint=endpoint, enabled=False)
    with pytest.raises(StateConflict) as refused:
        services.send_test(actor=alice, endpoint=endpoint)
    assert refused.value.code == "webhook_disabled"


def test_pending_delivery_cannot_be_redelivered(hook, receiving, alice):
    endpoint = hook(receiving.url)
    delivery = services.send_test(actor=alice, endpoint=endpoint)
    with pytest.raises(StateConflict):
        services.redeliver(actor=alice, delivery=delivery)
    (delivery,) = round_trip()
    services.redeliver(actor=alice, delivery=delivery)
    assert Delivery.objects.get().state == "pending"


def test_every_change_is_audited(hook, receiving, alice, team):
    endpoint = hook(receiving.url)
    services.change(actor=alice, endpoint=endpoint, name="Another")
    services.change(actor=alice, endpoint=endpoint, name="Another")  # no change
    services.rotate_secret(actor=alice, endpoint=endpoint)
    services.delete(actor=alice, endpoint=endpoint)
    kinds = list(
        Event.objects.filter(team=team, kind__startswith="webhook.")
        .order_by("pk")
        .values_list("kind", flat=True)
    )
    assert kinds == [
        AuditKind.WEBHOOK_CREATED,
        AuditKind.WEBHOOK_CHANGED,
        AuditKind.WEBHOOK_SECRET_ROTATED,
        AuditKind.WEBHOOK_DELETED,
    ]


def test_managing_webhooks_over_rest(api, alice, team, receiving):
    program = api(alice)
    made = program.post("teams/vision/webhooks", {**BODY, "url": receiving.url})
    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")
    assert made.json()["secret"].startswith("whsec_")
    path = f"webhooks/{made.json()['id']}"
    assert "secret" not in program.get(path).json()
    changed = program.send("PATCH", path, {"types": ["workspace.lost", "workspace.failed"]})
    assert changed.json()["types"] == ["workspace.failed", "workspace.lost"]
    tested = program.post(f"{path}/test", {})
    assert tested.status_code == 202
    round_trip()
    delivery = program.get(f"{path}/deliveries/{tested.json()['id']}").json()
    assert delivery["state"] == "delivered"
    assert delivery["attempts"][0]["status_code"] == 200
    assert program.post(f"{path}/deliveries/{delivery['id']}/redeliver", {}).status_code == 202
    assert program.post(f"{path}/rotate-secret", {}).json()["secret"] != made.json()["secret"]
    assert program.send("DELETE", path).status_code == 204
    problem(program.get(path), 404, "not_found")


def test_types_depend_on_permission(api, alice, olga, ada):
    counts = [len(api(user).get("webhook-event-types").json()) for user in (alice, olga, ada)]
    assert counts == [sum(each.audience <= audience for each in TYPES.values()) for audience in Audience]


def test_page_creates_a_webhook_and_shows_its_secret_once(as_user, alice, team):
    browser = as_user(alice)
    html = browser.post("/teams/vision/webhooks/", BODY).content.decode()
    (secret,) = re.findall(r'value="(whsec_[^"]+)"', html)
    assert decrypt(Endpoint.objects.get().secret, purpose=services.SECRET) == secret
    again = browser.get("/teams/vision/webhooks/").content.decode()
    assert "whsec_" not in again
    assert "Bot" in again
    refused = browser.post("/teams/vision/webhooks/", {**BODY, "url": "https://10.0.0.1/"})
    assert refused.status_code == 400
    assert "internal address" in refused.content.decode()


def test_webhook_page_escapes_log_and_responses(as_user, alice, hook, tell, receiving):
    receiving.answer = status(500, b"<script>alert(1)</script>")
    endpoint = hook(receiving.url)
    tell()
    round_trip()
    browser = as_user(alice)
    html = browser.get(f"/webhooks/{endpoint.pk}/").content.decode()
    assert "&lt;script&gt;alert(1)" in html
    assert "<script>alert" not in html
    for act in ("test", "switch", "rotate-secret"):
        assert browser.post(f"/webhooks/{endpoint.pk}/{act}/").status_code in (200, 302)
    assert not Endpoint.objects.get().enabled
    assert browser.post(f"/webhooks/{endpoint.pk}/delete/").status_code == 302
    assert not Endpoint.objects.exists()


def test_queries_of_the_log_do_not_grow_with_deliveries(as_user, alice, hook, receiving):
    endpoint = hook(receiving.url)
    now = timezone.now()
    browser = as_user(alice)

    def queries(rows: int) -> int:
        Delivery.objects.bulk_create(
            Delivery(endpoint=endpoint, type="berth.test", payload={}, state="failed", created_at=now)
            for _ in range(rows)
        )
        with CaptureQueriesContext(connection) as captured:
            assert browser.get(f"/webhooks/{endpoint.pk}/").status_code == 200
        return len(captured)

    queries(1)
    assert queries(5) == queries(500)
