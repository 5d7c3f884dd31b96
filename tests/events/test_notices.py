"""Notices in the portal, and by e-mail if configured."""

from __future__ import annotations

import datetime as dt
import itertools
import socketserver
import threading
from smtplib import SMTPRecipientsRefused, SMTPServerDisconnected

import pytest
from django.core import mail as outbox
from django.db import transaction

from portal.common.events import live, mail, services
from portal.common.events.models import Notification
from portal.common.events.tasks import send_mails

pytestmark = pytest.mark.django_db


@pytest.fixture
def mailing(settings):
    settings.BERTH_MAIL = True
    return outbox


def notify_users(*users, title="It ends soon", **fields):
    return services.notify(users, "test.told", title, **fields)


def test_each_recipient_is_notified_once_per_transaction(alice, bob):
    with transaction.atomic():
        notify_users(alice, bob, alice)
        notify_users(alice, url="/")  # another URL: another notice
        notify_users(alice)
    assert Notification.objects.filter(user=alice).count() == 2
    assert Notification.objects.filter(user=bob).count() == 1


def test_rolled_back_notice_is_not_sent_and_can_be_repeated(alice):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        notify_users(alice)
        raise ZeroDivisionError
    assert len(notify_users(alice)) == 1


def test_deactivated_user_gets_no_notice(alice):
    alice.is_active = False
    assert notify_users(alice) == []


def test_live_hint_is_published_to_the_user(alice, monkeypatch):
    sent = []
    monkeypatch.setattr(live, "publish_to", lambda user_id, kind: sent.append((user_id, kind)))
    notify_users(alice)
    assert sent == [(alice.pk, "test.told")]


def test_no_mail_is_scheduled_without_a_mail_server(alice, settings):
    assert settings.BERTH_MAIL is False
    (notice,) = notify_users(alice)
    assert notice.mail_due_at is None
    send_mails()
    assert outbox.outbox == []


def test_mail_has_the_text_and_url_of_the_notice(alice, mailing):
    notify_users(
        alice, title="Petra approved\r\nBcc: x@example.org", body="2 × H100", url="/quotas/requests/1/"
    )
    assert mail.send_due() == 1
    (message,) = mailing.outbox
    assert message.to == ["alice@example.org"]
    assert message.subject == "[Berth] Petra approved Bcc: x@example.org"
    assert "2 × H100" in message.body
    assert "http://localhost:8000/quotas/requests/1/" in message.body
    assert mail.send_due() == 0


def test_mail_can_be_disabled(alice, bob, charlie, mailing):
    alice.mail_notices = False
    bob.email = ""
    for user in (alice, bob):
        user.save()
    notify_users(alice, bob, charlie)
    charlie.mail_notices = False  # changes the preference before it is sent
    charlie.save()
    assert mail.send_due() == 0
    assert not Notification.objects.exclude(mail_due_at=None).exists()


def test_mail_is_tried_eight_times_with_exponential_backoff(alice, mailing, monkeypatch, clock):
    tried = []

    def away(self):
        tried.append(dt.datetime.now(dt.UTC))
        raise ConnectionRefusedError("away")

    monkeypatch.setattr(mail.EmailMessage, "send", away)
    (notice,) = notify_users(alice)
    for _ in range(600):
        mail.send_due()
        clock.shift(30)
    waits = [(b - a).total_seconds() for a, b in itertools.pairwise(tried)]
    assert len(tried) == mail.MAX_ATTEMPTS
    assert waits == [30 * 2**n for n in range(mail.MAX_ATTEMPTS - 1)]
    notice.refresh_from_db()
    assert notice.mail_due_at is None


def test_failing_server_ends_the_round_and_a_refused_recipient_does_not(
    alice, bob, charlie, mailing, monkeypatch
):
    sent = []

    def send(self):
        if self.to == ["alice@example.org"]:
            raise SMTPRecipientsRefused({"alice@example.org": (550, b"no")})
        if self.to == ["bob@example.org"]:
            raise SMTPServerDisconnected("gone")
        sent.append(self.to)

    monkeypatch.setattr(mail.EmailMessage, "send", send)
    for user in (alice, charlie, bob):
        notify_users(user)
    notify_users(charlie, title="Another")
    assert mail.send_due() == 1
    assert sent == [["charlie@example.org"]]
    assert mail.send_due() == 1


def test_mails_of_a_round_share_one_connection(alice, bob, mailing, settings):
    """Against an SMTP server: three mails, one refused, one connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            said.append("CONNECT")
            self.wfile.write(b"220 hello\r\n")
            while words := self.rfile.readline().decode().split():
                verb = words[0].upper()
                said.append(verb)
                if verb == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    while self.rfile.readline() != b".\r\n":
                        pass
                refused = verb == "RCPT" and "bob" in words[1]
                self.wfile.write(b"550 nobody\r\n" if refused else b"250 fine\r\n")
                if verb == "QUIT":
                    return

    said: list[str] = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = server.server_address
        for title, user in (("One", alice), ("Two", bob), ("Three", alice)):
            notify_users(user, title=title)
        assert mail.send_due() == 2
        server.shutdown()
    assert (said.count("CONNECT"), said.count("DATA"), said.count("QUIT")) == (1, 2, 1)
    assert Notification.objects.get(user=bob).mail_attempts == 1


def test_two_workers_at_once_send_one_mail(alice, mailing, monkeypatch):
    notify_users(alice)
    claim = mail._claim

    def slow(row, now):
        # The other worker reads and sends between our read and our claim.
        monkeypatch.setattr(mail, "_claim", claim)
        mail.send_due()
        return claim(row, now)

    monkeypatch.setattr(mail, "_claim", slow)
    mail.send_due()
    assert len(mailing.outbox) == 1


def test_bell_counts_unread_notices(alice, as_user):
    notify_users(alice, url="/teams/")
    notify_users(alice, title="Another")
    client = as_user(alice)
    assert "2 unread" in client.get("/teams/").content.decode()
    first = Notification.objects.get(title="It ends soon")
    answer = client.post(f"/notifications/{first.pk}/read/")
    assert (answer.status_code, answer["Location"]) == (302, "/teams/")
    assert "1 unread" in client.get("/notifications/bell/").content.decode()
    page = client.get("/notifications/?only=unread").content.decode()
    assert "Another" in page
    assert "It ends soon" not in page
    client.post("/notifications/read/")
    assert "unread</span>" not in client.get("/notifications/").content.decode()


def test_notice_does_not_redirect_to_another_site(alice, as_user):
    (notice,) = notify_users(alice, url="//evil.example/")
    assert as_user(alice).post(f"/notifications/{notice.pk}/read/")["Location"] == "/"


def test_account_page_shows_and_changes_mail_preference(alice, as_user, settings):
    client = as_user(alice)
    assert "no mail server is configured" in client.get("/account/").content.decode()
    settings.BERTH_MAIL = True
    assert "Also e-mail notices to alice@example.org" in client.get("/account/").content.decode()
    client.post("/account/notices/", {})
    alice.refresh_from_db()
    assert alice.mail_notices is False
    client.post("/account/notices/", {"mail": "on"})
    alice.refresh_from_db()
    assert alice.mail_notices is True


def test_notices_are_read_and_marked_over_rest(alice, bob, with_token):
    notify_users(alice, bob)
    client = with_token(alice, "notices:read", "notices:write")
    (row,) = client.get("/api/v1/notifications?unread=true").json()["results"]
    assert row["title"] == "It ends soon"
    read = client.post(f"/api/v1/notifications/{row['id']}/read").json()
    assert read["read_at"]
    assert client.get("/api/v1/notifications?unread=true").json()["results"] == []
    notify_users(alice, title="Another")
    assert client.post("/api/v1/notifications/read").json() == {"read": 1}
    assert Notification.objects.get(user=bob).read_at is None


# --- folding ------------------------------------------------------------------------------------


def test_repeated_notices_are_folded_while_the_first_is_unread(alice, bob, mailing, clock):
    fold = dt.timedelta(minutes=15)
    for number in range(20):
        notify_users(alice, title=f"paper-{number} has failed", url=f"/{number}/", fold=fold)
        clock.shift(6)
    notify_users(bob, fold=fold)
    (notice,) = Notification.objects.filter(user=alice)
    assert (notice.title, notice.repeats) == ("paper-0 has failed", 19)
    assert mail.send_due() == 2  # alice's one, and bob's
    services.mark_read(actor=alice)
    notify_users(alice, title="paper-21 has failed", fold=fold)
    clock.shift(fold.total_seconds() + 1)
    notify_users(alice, title="paper-22 has failed", fold=fold)
    titles = list(Notification.objects.filter(user=alice).order_by("pk").values_list("title", "repeats"))
    assert titles == [("paper-0 has failed", 19), ("paper-21 has failed", 0), ("paper-22 has failed", 0)]
