"""Notice channels: recipients, visibility and failures."""

from __future__ import annotations

import datetime as dt
import logging

import pytest
from django.db import transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.encrypted_fields import decrypt
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, Notification
from portal.common.events.services import notify
from portal.notify.channels import outbox, selectors, sending, services
from portal.notify.channels.codes import ChannelCode
from portal.notify.channels.kinds import SUBJECTS, subject_of
from portal.notify.channels.models import Channel, Message, MessageState, TeamFeed
from portal.notify.channels.sending import SendOutcome
from portal.people.accounts import users
from tests.api.conftest import api as api  # a fixture
from tests.api.conftest import problem
from tests.factories import WorkspaceFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
SLACK = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
OWN = {"name": "My Slack", "url": SLACK, "kinds": ["workspaces", "requests"]}
OF_TEAM = {"name": "Our Slack", "url": SLACK, "kinds": ["workspace.failed", "quota_request.made"]}


@pytest.fixture
def process(monkeypatch):
    """Replaces the sending process (see `test_sender`): records jobs and returns `outcome`."""

    class Process:
        jobs: list[sending.Job]
        outcome = SendOutcome(ok=True, status=200, answer="ok")

    found = Process()
    found.jobs = []

    def send(jobs):
        found.jobs += jobs
        return {job.id: found.outcome for job in jobs}

    monkeypatch.setattr(sending, "send", send)
    monkeypatch.setattr(sending, "inspect_url", lambda url: SendOutcome(ok=True, service="Slack"))
    return found


def tick() -> int:
    outbox.read_log()
    return outbox.run()


def due_now() -> None:
    past = timezone.now() - dt.timedelta(seconds=1)
    Message.objects.filter(due_at__isnull=False).update(due_at=past)
    Channel.objects.update(not_before=None)


def test_notice_is_sent_to_subscribed_channels_of_its_recipients(alice, bob, process):
    services.create(actor=alice, team=None, **OWN)
    services.create(actor=alice, team=None, **{**OWN, "kinds": ["reservations"]})
    services.create(actor=bob, team=None, **OWN)
    notify([alice], "workspace.ready", "paper is ready", "It waited.", "/workspaces/1/")
    tick()
    (job,) = process.jobs
    assert (job.url, job.title) == (SLACK, "[Berth] paper is ready")
    assert job.body == "It waited.\nhttp://localhost:8000/workspaces/1/"
    message = Message.objects.get()
    assert (message.state, message.channel.user, message.answer) == (MessageState.SENT, alice, "ok")
    assert tick() == 0


def test_rolled_back_notice_is_not_sent(alice, process):
    services.create(actor=alice, team=None, **OWN)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        notify([alice], "workspace.ready", "paper is ready")
        raise ZeroDivisionError
    assert not Message.objects.exists()


def test_every_kind_of_notice_has_a_subject():
    for kind in (
        "workspace.ready", "workspace.preempting", "workspace.device_lost", "quota.request_asked",
        "quota.grant_ended", "reservation.soon", "ledger.warning", "device.check_degraded",
        "team.owner_passed", "session.locked_out", "webhook.disabled", "channel.disabled",
    ):  # fmt: skip
        assert subject_of(kind) in SUBJECTS


def test_team_channel_gets_events_of_the_team(team, alice, bob, charlie, process):
    services.create(actor=alice, team=team, **OF_TEAM)
    outbox.read_log()
    workspace = WorkspaceFactory(owner=bob, team=team, name="paper")
    for kind, fields in (
        (AuditKind.WORKSPACE_FAIL, {"workspace": workspace, "reason": "no image"}),
        (AuditKind.WORKSPACE_READY, {"workspace": workspace}),
        (AuditKind.WORKSPACE_FAIL, {"team": charlie.teams.get()}),
        (AuditKind.USER_DEACTIVATED, {"team": team}),
    ):
        events.record(actor=SYSTEM, kind=kind, message="ends it", **fields)
    tick()
    (job,) = process.jobs
    assert job.title == "[Berth] paper: A workspace failed to start."
    assert job.body == f"Berth ends it: no image\nhttp://localhost:8000/workspaces/{workspace.pk}/"


def test_many_notices_are_combined_into_one_message(alice, process):
    services.create(actor=alice, team=None, **OWN)
    for number in range(20):
        notify([alice], "workspace.ready", f"paper-{number} is ready")
    tick()
    (job,) = process.jobs
    assert job.title == "[Berth] 20 notices"
    assert "- paper-0 is ready" in job.body
    assert "and 5 more" in job.body
    assert Message.objects.filter(state=MessageState.SENT).count() == 20


def test_failures_are_retried_and_abandoned(alice, process):
    services.create(actor=alice, team=None, **OWN)
    notify([alice], "workspace.ready", "paper is ready")
    process.outcome = SendOutcome(ok=False, status=403, answer="invalid_token")
    for number in range(1, outbox.MAX_ATTEMPTS + 1):
        due_now()
        tick()
        message = Message.objects.get()
        assert (message.attempts, message.status_code, message.answer) == (number, 403, "invalid_token")
    assert (message.state, message.due_at) == (MessageState.FAILED, None)
    assert len(process.jobs) == outbox.MAX_ATTEMPTS


def test_killed_worker_loses_no_message(alice, process, monkeypatch):
    services.create(actor=alice, team=None, **OWN)
    notify([alice], "workspace.ready", "paper is ready")

    def killed(jobs):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(sending, "send", killed)
        tick()
    assert Message.objects.get().state == MessageState.PENDING
    assert tick() == 0  # claimed, and not due yet
    due_now()
    assert tick() == 1
    assert Message.objects.get().state == MessageState.SENT


def test_repeated_failures_disable_the_channel_and_notify_its_owner(alice, process):
    channel = services.create(actor=alice, team=None, **{**OWN, "kinds": ["workspaces", "account"]})
    process.outcome = SendOutcome(ok=False, error="connection")
    for number in range(outbox.MAX_FAILURES):
        notify([alice], "workspace.ready", f"paper-{number} is ready")
        due_now()
        tick()
    assert Channel.objects.get().enabled  # not for long enough
    Channel.objects.update(failing_since=timezone.now() - outbox.FAILING_FOR)
    due_now()
    tick()
    assert not Channel.objects.get().enabled
    (notice,) = Notification.objects.filter(kind="channel.disabled")
    assert (notice.user, notice.url) == (alice, f"/channels/{channel.pk}/")
    assert not Message.objects.filter(kind="channel.disabled").exists()
    services.change(actor=alice, channel=channel, enabled=True)
    row = Channel.objects.get()
    assert (row.failures, row.failing_since) == (0, None)


def test_deactivated_user_gets_nothing(alice, process):
    services.create(actor=alice, team=None, **OWN)
    notify([alice], "workspace.ready", "paper is ready")
    type(alice).objects.filter(pk=alice.pk).update(is_active=False)
    assert tick() == 0
    assert process.jobs == []


def test_deleting_an_account_deletes_its_channels(alice, bob, ada, process):
    services.create(actor=bob, team=None, **OWN)
    users.delete(actor=ada, user=bob, delete_workspaces=True)
    assert not Channel.objects.exists()


def test_message_is_sent_by_one_worker_at_a_time(alice, process):
    services.create(actor=alice, team=None, **OWN)
    outbox.read_log()
    notify([alice], "workspace.ready", "paper is ready")
    TeamFeed.objects.update(busy_until=timezone.now() + dt.timedelta(seconds=60))
    assert outbox.run() == 0
    TeamFeed.objects.update(busy_until=timezone.now() - dt.timedelta(seconds=1))
    assert outbox.run() == 1


# --- permissions and visibility -------------------------------------------------------------------


def test_url_is_stored_encrypted_and_never_shown_or_logged(alice, team, process, as_user, api, caplog):
    caplog.set_level(logging.DEBUG)
    own = services.create(actor=alice, team=None, **OWN)
    of_team = services.create(actor=alice, team=team, **OF_TEAM)
    row = Channel.objects.get(pk=own.pk)
    assert decrypt(row.url, purpose=services.URL) == SLACK
    program, browser = api(alice), as_user(alice)
    shown = [browser.get(path).content.decode() for path in ("/account/channels/", "/teams/vision/channels/")]
    for each in (own, of_team):
        shown += [
            browser.get(f"/channels/{each.pk}/").content.decode(),
            program.get(f"notice-channels/{each.pk}").content.decode(),
            browser.post(f"/channels/{each.pk}/", {"name": "", "url": ""}).content.decode(),
        ]
    services.send_test(actor=alice, channel=own)
    tick()
    written = "".join(shown) + caplog.text + str(list(Event.objects.values())) + repr(own) + str(own)
    for secret in ("TIiajkdnlazkcOXrIdevi7FQ", "A1BRTD4JD", row.url):
        assert secret not in written


def test_personal_channels_are_hidden_from_others(alice, bob, olga, ada, process, api):
    own = services.create(actor=alice, team=None, **OWN)
    for actor in (bob, olga, ada):
        with pytest.raises(NotFound):
            selectors.channel_by_id(actor, own.pk)
        with pytest.raises(NotFound):
            services.change(actor=actor, channel=own, url="slack://x")
        problem(api(actor).send("DELETE", f"notice-channels/{own.pk}"), 404, "not_found")


def test_members_and_outsiders_cannot_create_or_see_team_channels(
    alice, bob, charlie, olga, team, process, api
):
    for actor in (bob, charlie):
        with pytest.raises(NotAllowed):
            services.create(actor=actor, team=team, **OF_TEAM)
    problem(api(bob).post("notice-channels", {**OF_TEAM, "team": "vision"}), 403, "not_allowed")
    refused = problem(api(charlie).post("notice-channels", {**OF_TEAM, "team": "vision"}), 400, "invalid")
    assert list(refused["errors"]) == ["team"]
    problem(api(bob).get("notice-channels?team=vision"), 403, "not_allowed")
    made = services.create(actor=olga, team=team, **OF_TEAM)
    with pytest.raises(NotAllowed):
        selectors.channel_by_id(bob, made.pk)
    with pytest.raises(NotFound):
        selectors.channel_by_id(charlie, made.pk)
    assert selectors.channel_by_id(alice, made.pk) == made


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"name": " "}, "name", ChannelCode.NAMELESS),
        ({"kinds": []}, "kinds", ChannelCode.CHOOSE_KINDS),
        ({"kinds": ["workspace.failed"]}, "kinds", ChannelCode.UNKNOWN_KINDS),
        ({"kinds": ["user.deactivated"]}, "kinds", ChannelCode.UNKNOWN_KINDS),
        ({"url": "x" * 1001}, "url", ChannelCode.URL_NONE),
    ],
)
def test_invalid_input_is_a_field_error(alice, process, change, field, code):
    with pytest.raises(InvalidInput) as refused:
        services.create(actor=alice, team=None, **{**OWN, **change})
    assert [each.code for each in refused.value.extra["errors"][field]] == [code]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("scheme", ChannelCode.URL_SERVICE),
        ("parameter", ChannelCode.URL_PARAMETER),
        ("no_url", ChannelCode.URL_NONE),
        ("timeout", ChannelCode.NOT_CHECKED),
    ],
)
def test_url_errors_are_reported(alice, process, monkeypatch, error, code):
    monkeypatch.setattr(sending, "inspect_url", lambda url: SendOutcome(ok=False, error=error))
    with pytest.raises(InvalidInput) as refused:
        services.create(actor=alice, team=None, **OWN)
    assert refused.value.extra["errors"]["url"][0].code is code


def test_channels_are_limited(alice, process, monkeypatch):
    monkeypatch.setattr(services, "MAX_CHANNELS", 1)
    services.create(actor=alice, team=None, **OWN)
    with pytest.raises(StateConflict):
        services.create(actor=alice, team=None, **OWN)


def test_test_message_shows_the_response(alice, process, api):
    process.outcome = SendOutcome(ok=False, status=404, answer="no_team")
    program = api(alice)
    made = program.post("notice-channels", OWN)
    assert made.status_code == 201
    path = f"notice-channels/{made.json()['id']}"
    assert program.post(f"{path}/test", {}).status_code == 202
    problem(program.post(f"{path}/test", {}), 409, "on_its_way")
    tick()
    (message,) = program.get(f"{path}/messages").json()["results"]
    assert (message["state"], message["status_code"], message["answer"]) == ("failed", 404, "no_team")
    changed = program.send("PATCH", path, {"enabled": False, "kinds": ["requests"]}).json()
    assert (changed["enabled"], changed["kinds"]) == (False, ["requests"])
    problem(program.post(f"{path}/test", {}), 409, "channel_disabled")
    assert program.send("DELETE", path).status_code == 204


def test_channels_are_created_changed_and_deleted_on_pages(alice, team, process, as_user):
    browser = as_user(alice)
    made = browser.post("/account/channels/", {"name": "My Slack", "url": SLACK, "types": ["workspaces"]})
    channel = Channel.objects.get()
    assert made["Location"] == f"/channels/{channel.pk}/"
    before = channel.url
    browser.post(f"/channels/{channel.pk}/", {"name": "Another", "url": "", "types": ["requests"]})
    channel.refresh_from_db()
    assert (channel.name, channel.kinds, channel.url) == ("Another", ["requests"], before)
    browser.post(f"/channels/{channel.pk}/test/")
    tick()
    assert "Test of channel" in browser.get(f"/channels/{channel.pk}/").content.decode()
    browser.post(f"/channels/{channel.pk}/switch/", {"enabled": "0"})
    assert not Channel.objects.get().enabled
    assert browser.post(f"/channels/{channel.pk}/delete/")["Location"] == "/account/channels/"
    refused = browser.post("/teams/vision/channels/", {"name": "x", "url": SLACK, "types": ["workspaces"]})
    assert refused.status_code == 400


def test_old_messages_are_deleted(alice, process, settings):
    services.create(actor=alice, team=None, **OWN)
    notify([alice], "workspace.ready", "paper is ready")
    old = timezone.now() - dt.timedelta(days=settings.BERTH_WEBHOOK_KEEP_DAYS, hours=1)
    Message.objects.update(created_at=old)
    assert outbox.prune() == 1
