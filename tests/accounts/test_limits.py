"""Limits on failed sign-ins, tokens and mails by address, and the lifetime of sessions."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import httpx
import pytest
from django.contrib.sessions.models import Session
from django.core import mail

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.people.accounts import deactivation, last_seen, limits, mails
from portal.people.accounts.breached_passwords import is_breached, is_in_file
from portal.people.accounts.models import FailureWindow, UserSession
from portal.people.accounts.tasks import forget_sign_ins
from tests.factories import PASSWORD

pytestmark = pytest.mark.django_db
URL = "/sign-in/"
WINDOW = timedelta(minutes=15)


@pytest.fixture
def low_limits(settings):
    settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS = 5


def fail_sign_ins(client, count, **headers):
    for number in range(count):
        client.post(URL, {"username": f"user-{number}", "password": "Summer2026!"}, **headers)


def can_sign_in(client, name="alice", **headers):
    client.post(URL, {"username": name, "password": PASSWORD}, **headers)
    return client.get("/").status_code == 200


def test_many_names_from_one_address_are_refused_with_one_notice(as_user, alice, low_limits):
    client = as_user()
    fail_sign_ins(client, 7)
    answered = client.post(URL, {"username": "alice", "password": PASSWORD})
    assert answered.status_code == 429
    assert int(answered["Retry-After"]) == 900
    entry = Event.objects.get(kind=AuditKind.SESSION_ADDRESS_REFUSED)
    assert entry.address == "127.0.0.1"


def test_other_addresses_can_sign_in(as_user, alice, low_limits):
    fail_sign_ins(as_user(), 6)
    assert can_sign_in(as_user(), REMOTE_ADDR="10.0.0.9")


def test_sign_in_is_allowed_after_the_window(as_user, alice, low_limits, clock):
    fail_sign_ins(as_user(), 6)
    clock.shift(15 * 60 + 1)
    assert can_sign_in(as_user())


def test_known_browser_can_sign_in(as_user, alice, low_limits):
    own = as_user()
    assert can_sign_in(own, REMOTE_ADDR="10.0.0.9")
    own.post("/sign-out/")
    fail_sign_ins(as_user(), 30)
    assert can_sign_in(own)


def test_known_users_of_an_address_have_a_higher_limit(as_user, alice, bob, low_limits):
    assert can_sign_in(as_user())
    fail_sign_ins(as_user(), 6)
    assert can_sign_in(as_user())
    assert not can_sign_in(as_user(), "bob")
    FailureWindow.objects.filter(key__startswith="sign-in:").update(count=20)
    assert not can_sign_in(as_user())


def test_known_browser_cookie_is_valid_for_its_user_only(as_user, alice, bob, low_limits):
    own = as_user()
    assert can_sign_in(own, REMOTE_ADDR="10.0.0.9")
    own.post("/sign-out/")
    fail_sign_ins(as_user(), 6)
    assert not can_sign_in(own, "bob")


def test_failures_of_one_name_do_not_exhaust_the_address_limit(as_user, alice, bob, settings):
    """Failures beyond the limit of a name do not count, so one name cannot lock out a whole office."""
    settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS = settings.AXES_FAILURE_LIMIT + 1
    client = as_user()
    for _ in range(settings.AXES_FAILURE_LIMIT * 3):
        client.post(URL, {"username": "bob", "password": "wrong"})
    assert can_sign_in(as_user(), "alice")


def test_ipv6_addresses_of_one_network_count_together():
    assert limits.network_of("2001:db8:1:2:aaaa::1") == limits.network_of("2001:db8:1:2:bbbb::2")
    assert limits.network_of("2001:db8:1:2::1") != limits.network_of("2001:db8:1:3::1")
    assert limits.network_of("10.0.0.1") != limits.network_of("10.0.0.2")
    assert limits.network_of("") == "unknown"


def test_window_counts_expires_and_restarts(clock):
    assert [limits.count("k", window=WINDOW) for _ in range(3)] == [1, 2, 3]
    assert limits.current_count("k", window=WINDOW) == 3
    clock.shift(WINDOW.total_seconds() + 1)
    assert limits.current_count("k", window=WINDOW) == 0
    assert limits.count("k", window=WINDOW) == 1
    assert limits.remove_old(window=timedelta(days=1)) == 0
    clock.shift(86_401)
    assert limits.remove_old(window=timedelta(days=1)) == 1


def test_invalid_tokens_are_limited_by_address_and_valid_ones_never_are(as_user, with_token, alice, settings):
    settings.BERTH_TOKEN_FAILURES_PER_ADDRESS = 3
    bad = as_user()
    statuses = [
        bad.get("/api/v1/me", headers={"Authorization": f"Bearer berth_{number}"}).status_code
        for number in range(5)
    ]
    assert statuses == [401, 401, 401, 429, 429]
    assert with_token(alice).get("/api/v1/me").status_code == 200
    assert Event.objects.filter(kind=AuditKind.SESSION_ADDRESS_REFUSED, data__of="tokens").count() == 1
    assert bad.get("/api/v1/me", headers={"Authorization": "Bearer x"})["Retry-After"] == "900"


def test_password_reset_mails_are_limited_by_address(as_user, settings, low_limits, sent):
    settings.BERTH_MAIL = True
    client = as_user()
    statuses = [client.post("/sign-in/forgotten/", {"name": f"user-{n}"}).status_code for n in range(7)]
    assert statuses == [200] * 5 + [429] * 2


@pytest.mark.parametrize("name", ["alice\nBcc: evil@example.org", "alice\r\nSubject: x", "a@b.c\nTo: x@y.z"])
def test_typed_names_cannot_inject_mail_headers(as_user, alice, settings, name):
    settings.BERTH_MAIL = True
    as_user().post("/sign-in/forgotten/", {"name": name})
    mails.send_forgotten(name)
    assert mail.outbox == []


# --- Sessions ---


def test_a_session_ends_when_it_is_idle(as_user, alice, settings, clock):
    client = as_user()
    assert can_sign_in(client)
    clock.shift(settings.BERTH_SESSION_IDLE_HOURS * 3600 - 60)
    assert client.get("/").status_code == 200
    clock.shift(settings.BERTH_SESSION_IDLE_HOURS * 3600 - 60)
    assert client.get("/").status_code == 200, "it was used meanwhile"
    clock.shift(settings.BERTH_SESSION_IDLE_HOURS * 3600 + 1)
    assert client.get("/").status_code == 302


def test_active_session_ends_at_its_maximum_age(as_user, alice, settings, clock):
    client = as_user()
    assert can_sign_in(client)
    hours = 0
    while client.get("/").status_code == 200:
        clock.shift(24 * 3600)
        hours += 24
        assert hours < 10_000
    assert hours == settings.BERTH_SESSION_MAX_HOURS


def test_ending_other_sessions_does_not_extend_the_current_one(as_user, alice, settings, clock):
    client = as_user()
    assert can_sign_in(client)
    for _ in range(int(settings.BERTH_SESSION_MAX_HOURS) // 48):
        clock.shift(48 * 3600 - 1)
        client.post("/account/sessions/revoke/")
    clock.shift(48 * 3600)
    assert client.get("/").status_code == 302


def test_cookie_of_an_ended_session_is_invalid_after_reactivation(as_user, alice, ada):
    client = as_user()
    assert can_sign_in(client)
    deactivation.deactivate(actor=ada, user=alice)
    assert client.get("/").status_code == 302
    deactivation.reactivate(actor=ada, user=alice)
    assert client.get("/").status_code == 302


def test_last_seen_is_written_at_most_every_few_minutes(as_user, alice, clock):
    client = as_user()
    assert can_sign_in(client)
    row = UserSession.objects.get(user=alice)
    first = row.last_seen_at
    clock.shift(60)
    client.get("/account/")
    row.refresh_from_db()
    assert row.last_seen_at == first
    clock.shift(300)
    client.get("/account/")
    row.refresh_from_db()
    assert row.last_seen_at == first + timedelta(seconds=360)
    assert "Last seen" in client.get("/account/").content.decode()


def test_automatic_refresh_does_not_count_as_activity(as_user, alice, clock):
    client = as_user()
    assert can_sign_in(client)
    first = UserSession.objects.get(user=alice).last_seen_at
    clock.shift(600)
    client.get("/", headers={"HX-Request": "true", "HX-Target": "list"})
    assert UserSession.objects.get(user=alice).last_seen_at == first


def test_last_seen_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(last_seen, "MAX_KEPT", 3)
    assert all(last_seen._is_due(f"bounded-{number}") for number in range(9))
    assert len(last_seen._last_recorded) <= 3
    assert not last_seen._is_due("bounded-8")


# --- Passwords that have leaked ---

LEAKED = "correct horse battery staple"


def sha1(text):
    return hashlib.sha1(text.encode()).hexdigest().upper()


@pytest.mark.parametrize("size", [1, 2, 3, 50, 1000])
@pytest.mark.parametrize("counts", [True, False])
def test_breach_file_search_finds_listed_hashes_only(tmp_path, size, counts):
    known = sorted(sha1(str(number)) for number in range(size))
    path = tmp_path / "hashes.txt"
    path.write_text(
        "".join(f"{digest}:{at}\r\n" if counts else f"{digest}\n" for at, digest in enumerate(known))
    )
    assert all(is_in_file(digest, path) for digest in known)
    assert not any(is_in_file(sha1(f"not {number}"), path) for number in range(50))
    assert not is_in_file("0" * 40, path)
    assert not is_in_file("F" * 40, path)


def test_breached_password_is_refused(as_user, alice, settings, tmp_path):
    path = tmp_path / "hashes.txt"
    path.write_text(f"{sha1(LEAKED)}:9\n")
    settings.BERTH_BREACHED_PASSWORDS_FILE = str(path)
    body = {"old_password": PASSWORD, "new_password": LEAKED, "repeated": LEAKED}
    answered = as_user(alice).post("/account/", body)
    assert answered.status_code == 400
    assert "appeared in a data leak" in answered.content.decode()


def test_missing_file_accepts_passwords_with_a_warning(settings, caplog, tmp_path):
    settings.BERTH_BREACHED_PASSWORDS_FILE = str(tmp_path / "none.txt")
    assert not is_breached(LEAKED)
    assert "could not compare new password" in caplog.text
    assert LEAKED not in caplog.text


def fake_responses(monkeypatch, answer):
    asked = []

    def get(url, **_options):
        asked.append(url)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer[0], text=answer[1], request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    return asked


def test_breach_service_receives_five_hash_digits_only(settings, monkeypatch):
    settings.BERTH_BREACHED_PASSWORDS_URL = "https://range.example.org"
    digest = sha1(LEAKED)
    asked = fake_responses(monkeypatch, (200, f"{'0' * 35}:3\r\n{digest[5:]}:7\r\n"))
    assert is_breached(LEAKED)
    assert not is_breached("another password altogether")
    assert asked[0] == f"https://range.example.org/{digest[:5]}"


def test_padding_lines_are_not_breaches(settings, monkeypatch):
    settings.BERTH_BREACHED_PASSWORDS_URL = "https://range.example.org"
    fake_responses(monkeypatch, (200, f"{sha1(LEAKED)[5:]}:0"))
    assert not is_breached(LEAKED)


@pytest.mark.parametrize(
    "answer", [(500, ""), (404, ""), (301, ""), httpx.ConnectTimeout("slow"), httpx.ConnectError("no route")]
)
def test_unreachable_service_accepts_passwords(settings, monkeypatch, caplog, answer):
    settings.BERTH_BREACHED_PASSWORDS_URL = "https://range.example.org"
    fake_responses(monkeypatch, answer)
    assert not is_breached(LEAKED)
    assert "could not compare new password" in caplog.text


def test_breach_service_is_not_called_by_default(monkeypatch):
    asked = fake_responses(monkeypatch, (200, ""))
    assert not is_breached(LEAKED)
    assert asked == []


def test_expired_sessions_and_failure_windows_are_deleted(as_user, alice, settings, clock):
    assert can_sign_in(as_user())
    limits.count("k", window=WINDOW)
    forget_sign_ins()
    assert (Session.objects.count(), FailureWindow.objects.count()) == (1, 1)
    clock.shift(settings.BERTH_SESSION_IDLE_HOURS * 3600 + 1)
    forget_sign_ins()
    assert (Session.objects.count(), FailureWindow.objects.count()) == (0, 0)
