"""A planted value is in no notice, mail, chat message or error report."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.test import Client

from portal.common.events.models import Event, Notification
from portal.notify.channels import outbox, sending
from portal.notify.channels import services as channels
from portal.notify.channels.sending import SendOutcome
from portal.workspaces.models import Workspace
from portal.workspaces.secrets import services
from portal.workspaces.secrets.models import Secret
from portal.workspaces.tokens import agent_token
from tests.workspaces.helpers import answer

pytestmark = pytest.mark.django_db
VALUE = "planted-value-77c0de"


@pytest.fixture
def jobs(monkeypatch) -> list[sending.Job]:
    """Record outgoing mails and chat messages."""
    found: list[sending.Job] = []

    def send(given: list[sending.Job]) -> dict[Any, SendOutcome]:
        found.extend(given)
        return {job.id: SendOutcome(ok=True, status=200, answer="ok") for job in given}

    monkeypatch.setattr(sending, "send", send)
    monkeypatch.setattr(sending, "inspect_url", lambda url: SendOutcome(ok=True, service="mail"))
    return found


def test_secret_value_is_not_in_mails_notices_or_audit_entries(
    jobs, clock, sent, make, bob, alice, team, local_pool
):
    url = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    channels.create(actor=bob, team=None, name="Mine", url=url, kinds=["workspaces", "account"])
    channels.create(actor=alice, team=team, name="Ours", url=url, kinds=["workspace.failed"])
    outbox.read_log()
    services.put_secret(actor=bob, holder=bob, name="TOKEN_A", value=VALUE, everywhere=True)
    services.put_secret(actor=bob, holder=bob, name="TOKEN_A", value=f"{VALUE}2")
    row = make(bob, secrets=["TOKEN_A"])
    token = agent_token(row.pk, row.generation)
    told = Client(headers={"Authorization": f"Bearer {token}"}).post(
        "/agent/v1/secrets", b"{}", content_type="application/json"
    )
    assert VALUE in told.content.decode()
    assert answer(sent, "start", "failed", log_tail="Traceback: [secret] is wrong")
    assert answer(sent, "delete", "absent")
    row.refresh_from_db()
    assert row.state == "failed"
    services.delete(actor=bob, secret=Secret.objects.get())
    outbox.read_log()
    outbox.run()
    assert jobs, "the failed start is told"
    said = [f"{job.title} {job.body}" for job in jobs]
    said += [f"{notification.title} {notification.body}" for notification in Notification.objects.all()]
    said += [f"{event.message} {json.dumps(event.data)}" for event in Event.objects.all()]
    said += [repr(each) for each in Workspace.objects.values()]
    assert not [text for text in said if VALUE in text]


@pytest.mark.parametrize("by", ["rest", "page"])
def test_secret_value_is_not_in_error_reports(by, as_user, bob, monkeypatch, caplog):
    """On an unexpected error while saving, neither the response nor a log has the value."""

    def breaks(**_given: Any) -> None:
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(services.events, "record", breaks)
    browser = as_user(bob)
    browser.raise_request_exception = False
    with caplog.at_level(logging.DEBUG):
        if by == "rest":
            answer = browser.put("/api/v1/me/secrets/TOKEN_A", {"value": VALUE}, "application/json")
        else:
            form = {"name": "TOKEN_A", "value": VALUE, "kind": "env", "do": "save"}
            answer = browser.post("/account/secrets/", form)
    assert answer.status_code == 500
    assert VALUE not in answer.content.decode()
    assert "the disk is gone" not in answer.content.decode()
    logged = [f"{record.getMessage()} {record.exc_text or ''} {vars(record)}" for record in caplog.records]
    assert any("the disk is gone" in each for each in logged)
    assert not [each for each in logged if VALUE in each]
    assert not Secret.objects.exists()
