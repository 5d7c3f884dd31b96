"""Auditors read webhooks, channels and their logs without secrets, and change nothing."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.common.encrypted_fields import encrypt
from portal.notify.channels.models import Channel, Message, MessageState
from portal.notify.webhooks.models import Delivery
from portal.notify.webhooks.presenters import url_origin

pytestmark = pytest.mark.django_db
PURPOSE = "channels.channel.url"
SECRET = "T1JJ3T3L2-xoxb-97"
URL = f"https://hooks.example.org:8443/services/{SECRET}?token={SECRET}"


@pytest.fixture
def delivered(settings, hook):
    """A webhook of vision, and a delivery whose response repeats the URL, like an error page."""
    settings.BERTH_OUTGOING_ALLOW = ["hooks.example.org"]
    endpoint = hook(URL)
    now = timezone.now()
    delivery = Delivery.objects.create(
        endpoint=endpoint, type="workspace.failed", payload={"said": "so"}, created_at=now
    )
    delivery.attempts.create(number=1, at=now, duration_ms=7, status_code=404, answer=f"no {URL} here")
    return delivery


@pytest.fixture
def message(team, alice):
    channel = Channel.objects.create(
        team=team,
        name="Our Slack",
        url=encrypt(URL, purpose=PURPOSE),
        service="Slack",
        kinds=["workspace.failed"],
    )
    return Message.objects.create(
        channel=channel,
        kind="workspace.failed",
        title="It failed",
        state=MessageState.FAILED,
        created_at=timezone.now(),
        status_code=404,
        answer=f"no {URL} here",
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "https://hooks.example.org:8443/…"),
        ("https://hooks.example.org", "https://hooks.example.org/"),
        ("https://hooks.example.org/", "https://hooks.example.org/"),
        ("https://hooks.example.org?k=1", "https://hooks.example.org/…"),
        ("https://me:word@hooks.example.org/x", "https://hooks.example.org/…"),
        ("https://[2001:db8::1]:8443/x", "https://[2001:db8::1]:8443/…"),
        ("https://hooks.example.org/#x", "https://hooks.example.org/"),
    ],
)
def test_url_is_redacted(url, shown):
    assert url_origin(url) == shown


def test_auditor_reads_all_but_secrets_over_rest(api, una, delivered, message):
    hook = delivered.endpoint
    asked = api(una, "webhooks:read")
    paths = [
        "/webhooks",
        "/teams/vision/webhooks",
        f"/webhooks/{hook.pk}",
        f"/webhooks/{hook.pk}/deliveries",
        f"/webhooks/{hook.pk}/deliveries/{delivered.pk}",
        "/notice-channels?team=vision",
        f"/notice-channels/{message.channel_id}",
        f"/notice-channels/{message.channel_id}/messages",
    ]
    for path in paths:
        answer = asked.get(f"/api/v1{path}")
        assert answer.status_code == 200, path
        assert SECRET not in answer.content.decode() and "whsec_" not in answer.content.decode(), path
    assert asked.get(f"/api/v1{paths[2]}").json()["url"] == "https://hooks.example.org:8443/…"
    [attempt] = asked.get(f"/api/v1{paths[4]}").json()["attempts"]
    assert (attempt["status_code"], attempt["answer"]) == (404, "")
    [sent] = asked.get(f"/api/v1{paths[7]}").json()["results"]
    assert (sent["title"], sent["status_code"], sent["answer"]) == ("It failed", 404, "")


def test_managers_see_all_fields(api, alice, olga, delivered, message):
    for manager in (alice, olga):
        asked = api(manager)
        assert asked.get(f"/api/v1/webhooks/{delivered.endpoint_id}").json()["url"] == URL
        assert asked.get("/api/v1/teams/vision/webhooks").json()["results"][0]["url"] == URL
        log = asked.get(f"/api/v1/webhooks/{delivered.endpoint_id}/deliveries").json()["results"]
        assert SECRET in log[0]["attempts"][0]["answer"]
        sent = asked.get(f"/api/v1/notice-channels/{message.channel_id}/messages").json()["results"]
        assert SECRET in sent[0]["answer"]


def test_pages_show_auditors_no_secret_and_no_form(as_user, una, delivered, message):
    browser = as_user(una)
    for path in (
        "/webhooks/",
        "/teams/vision/webhooks/",
        f"/webhooks/{delivered.endpoint_id}/",
        "/teams/vision/channels/",
        f"/channels/{message.channel_id}/",
    ):
        page = browser.get(path)
        text = page.content.decode()
        assert page.status_code == 200, path
        assert SECRET not in text, path
        main = text.partition("<main")[2].partition("</main>")[0]
        assert 'method="post"' not in main and "/delete/" not in main, path
    log = browser.get(f"/webhooks/{delivered.endpoint_id}/").content.decode()
    assert "https://hooks.example.org:8443/…" in log and "404" in log and "workspace.failed" in log
    assert "/teams/vision/webhooks/" in browser.get("/teams/vision/").content.decode()


def test_auditor_cannot_change_webhooks(as_user, una, delivered, message):
    browser, hook, channel = as_user(una), delivered.endpoint, message.channel
    evil = "https://evil.example.org/"
    given = {"name": "Mine", "url": evil, "types": ["workspace.failed"], "enabled": "0"}
    pages = [
        "/webhooks/",
        "/teams/vision/webhooks/",
        *(f"/webhooks/{hook.pk}/{act}" for act in ("", "test/", "rotate-secret/", "switch/", "delete/")),
        f"/webhooks/{hook.pk}/deliveries/{delivered.pk}/redeliver/",
        "/teams/vision/channels/",
        *(f"/channels/{channel.pk}/{act}" for act in ("", "test/", "switch/", "delete/")),
    ]
    for path in pages:
        assert browser.post(path, given).status_code == 403, path
    rest = [
        ("post", "/teams/vision/webhooks"),
        ("patch", f"/webhooks/{hook.pk}"),
        ("delete", f"/webhooks/{hook.pk}"),
        ("post", f"/webhooks/{hook.pk}/rotate-secret"),
        ("post", f"/webhooks/{hook.pk}/test"),
        ("post", f"/webhooks/{hook.pk}/deliveries/{delivered.pk}/redeliver"),
        ("patch", f"/notice-channels/{channel.pk}"),
        ("delete", f"/notice-channels/{channel.pk}"),
        ("post", f"/notice-channels/{channel.pk}/test"),
    ]
    body = {"name": "Mine", "url": evil, "types": ["workspace.failed"]}
    for method, path in rest:
        given_rest = body if "webhooks" in path else {"name": "Mine"}
        answer = getattr(browser, method)(f"/api/v1{path}", given_rest, content_type="application/json")
        assert answer.status_code == 403, path
    before = hook.secret
    hook.refresh_from_db()
    channel.refresh_from_db()
    assert (hook.name, hook.url, hook.enabled, hook.secret) == ("Bot", URL, True, before)
    assert (channel.name, channel.enabled) == ("Our Slack", True)
    assert Delivery.objects.count() == 1


def test_webhooks_about_people_are_read_by_auditors_and_not_by_operators(api, una, olga, ada, settings, hook):
    settings.BERTH_OUTGOING_ALLOW = ["hooks.example.org"]
    about_people = hook(URL, "user.deactivated", actor=ada, team=None)
    assert [row["id"] for row in api(una, "webhooks:read").get("/api/v1/webhooks").json()["results"]] == [
        str(about_people.pk)
    ]
    assert api(una, "webhooks:read").get(f"/api/v1/webhooks/{about_people.pk}").status_code == 200
    assert api(olga).get("/api/v1/webhooks").json()["results"] == []
    assert api(olga).get(f"/api/v1/webhooks/{about_people.pk}").status_code == 403


def test_personal_channels_belong_to_one_user(api, una, bob):
    own = Channel.objects.create(
        user=bob,
        name="Mine",
        url=encrypt(URL, purpose=PURPOSE),
        service="Slack",
        kinds=["workspaces"],
    )
    for path in (f"/notice-channels/{own.pk}", f"/notice-channels/{own.pk}/messages"):
        assert api(una, "webhooks:read").get(f"/api/v1{path}").status_code == 404
    assert api(una, "webhooks:read").get("/api/v1/notice-channels").json()["results"] == []


def test_auditor_sees_responses_to_the_own_channel(api, una):
    own = Channel.objects.create(
        user=una,
        name="Mine",
        url=encrypt(URL, purpose=PURPOSE),
        service="Slack",
        kinds=["workspaces"],
    )
    Message.objects.create(channel=own, kind="test", title="A test", created_at=timezone.now(), answer="ok")
    [sent] = api(una, "webhooks:read").get(f"/api/v1/notice-channels/{own.pk}/messages").json()["results"]
    assert sent["answer"] == "ok"
