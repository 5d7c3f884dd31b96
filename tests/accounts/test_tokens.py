"""API tokens: shown once, stored as a digest, scoped, expiring, revoked at once."""

from __future__ import annotations

import datetime as dt
import uuid
from html import unescape
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from portal.common import request_context
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.common.scopes import Scope
from portal.people.accounts import selectors, token_lookup, token_uses, token_views, tokens
from portal.people.accounts.models import ApiToken
from portal.people.accounts.security_events import security_events_of
from tests.factories import make_token

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def test_token_secret_is_shown_once_and_not_stored(alice):
    made = tokens.create_token(actor=alice, user=alice, name=" ci ", scopes=["catalog:read"])
    assert made.secret.startswith("berth_")
    assert len(made.secret) > 40
    stored = ApiToken.objects.values().get()
    assert made.secret not in str(stored)
    assert made.secret not in repr(made)
    assert made.secret not in str(list(Event.objects.values()))
    assert (stored["name"], stored["scopes"]) == ("ci", ["catalog:read"])
    assert made.secret.startswith(stored["prefix"])
    assert len(stored["prefix"]) < 16


def test_valid_token_returns_its_user(alice):
    token, secret = make_token(alice)
    assert token_lookup.find_valid_token(secret) == (alice, token)


def test_token_secrets_are_unique(alice):
    assert len({make_token(alice)[1] for _ in range(20)}) == 20


@pytest.mark.parametrize("change", ["", "x", "berth_", "berth_x", "BERTH_", "berth_\N{SNOWMAN}"])
def test_malformed_token_is_invalid(alice, change):
    make_token(alice)
    assert token_lookup.find_valid_token(change) is None


def test_truncated_or_extended_secret_is_invalid(alice):
    _, secret = make_token(alice)
    assert token_lookup.find_valid_token(secret[:-1]) is None
    assert token_lookup.find_valid_token(secret + "x") is None
    assert token_lookup.find_valid_token(secret.swapcase()) is None


def test_expired_token_is_invalid(alice, clock):
    _, secret = make_token(alice, expires_at=timezone.now() + HOUR)
    clock.shift(3599)
    assert token_lookup.find_valid_token(secret) is not None
    clock.shift(1)
    assert token_lookup.find_valid_token(secret) is None


def test_token_of_a_deactivated_user_is_invalid(alice):
    _, secret = make_token(alice)
    alice.is_active = False
    alice.save()
    assert token_lookup.find_valid_token(secret) is None


def test_revoked_token_is_invalid_at_once(alice):
    token, secret = make_token(alice)
    tokens.revoke_token(actor=alice, token_id=token.pk)
    assert token_lookup.find_valid_token(secret) is None
    tokens.revoke_token(actor=alice, token_id=token.pk)
    assert Event.objects.filter(kind="token.revoked").count() == 1


def test_a_token_is_revoked_after_a_question_that_says_when_it_was_used(alice, olga, as_user):
    token, secret = make_token(alice)
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=timezone.now() - 3 * HOUR)
    path, back = f"/account/tokens/{token.pk}/revoke/", "/tokens/?owner=alice"
    asked = as_user(olga).get(path, {"next": back})
    page = " ".join(unescape(asked.content.decode()).split())
    assert "Revoke “test” of alice?" in page and "last used 3 hours ago" in page.replace("\xa0", " ")
    assert token_lookup.find_valid_token(secret) is not None
    assert as_user(olga).post(path, {"next": back}).url == back
    assert token_lookup.find_valid_token(secret) is None
    assert as_user(alice).get(path, {"next": "https://elsewhere.example/"}).url == "/account/tokens/"


def test_operators_revoke_every_token(alice, olga):
    token, secret = make_token(alice)
    tokens.revoke_token(actor=olga, token_id=token.pk)
    assert token_lookup.find_valid_token(secret) is None
    assert Event.objects.get(kind="token.revoked").message == "revoked the token “test” of alice"


def test_users_cannot_revoke_tokens_of_others(alice, bob, petra):
    token, secret = make_token(alice)
    for actor in (bob, petra):
        with pytest.raises(NotFound):
            tokens.revoke_token(actor=actor, token_id=token.pk)
    with pytest.raises(NotFound):
        tokens.revoke_token(actor=alice, token_id=uuid.uuid4())
    assert token_lookup.find_valid_token(secret) is not None


@pytest.mark.parametrize("username", ["bob", "olga"])
def test_users_cannot_create_tokens_for_others(alice, request, username):
    with pytest.raises(NotAllowed):
        tokens.create_token(actor=request.getfixturevalue(username), user=alice, name="x")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["nonsense"]}, "scopes"),
        ({"name": "  "}, "name"),
        ({"expires_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "expires_at"),
    ],
)
def test_invalid_input_is_a_field_error(alice, fields, field):
    with pytest.raises(InvalidInput) as refused:
        tokens.create_token(**{"actor": alice, "user": alice, "name": "x", **fields})
    assert field in refused.value.extra["errors"]
    assert not ApiToken.objects.exists()


def test_token_cannot_create_a_broader_or_longer_lived_token(alice):
    narrow, _ = make_token(alice, Scope.TOKENS_WRITE, Scope.CATALOG_READ, expires_at=timezone.now() + HOUR)

    def make(**fields):
        return tokens.create_token(
            **{"actor": alice, "user": alice, "name": "child", "made_with": narrow, **fields}
        )

    with pytest.raises(NotAllowed):
        make(scopes=[Scope.ALL], expires_at=timezone.now() + HOUR / 2)
    with pytest.raises(NotAllowed):
        make(scopes=[Scope.POOLS_WRITE], expires_at=timezone.now() + HOUR / 2)
    with pytest.raises(NotAllowed):
        make(scopes=[Scope.CATALOG_READ], expires_at=timezone.now() + 2 * HOUR)
    with pytest.raises(NotAllowed):
        make(scopes=[Scope.CATALOG_READ])
    assert make(scopes=[Scope.CATALOG_READ], expires_at=timezone.now() + HOUR / 2)


class UsesInMemory:
    """In-memory replacement of the Redis hash of token uses."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.writes = 0
        self.changes = 0

    def incr(self, _key: str) -> None:
        self.changes += 1

    def hset(self, _key: str, name: str, value: str) -> None:
        self.writes += 1
        self.kept[name.encode()] = value.encode()

    def hgetall(self, _key: str) -> dict[bytes, bytes]:
        return dict(self.kept)

    def hdel(self, _key: str, *names: bytes) -> None:
        for name in names:
            del self.kept[name]


@pytest.fixture
def uses(monkeypatch):
    kept = UsesInMemory()
    monkeypatch.setattr(token_uses.live, "connection", lambda: kept)
    return kept


def test_last_use_is_buffered_once_a_minute_and_stored_by_another_process(alice, clock, uses):
    token, secret = make_token(alice)
    first = timezone.now()
    token_lookup.find_valid_token(secret)
    clock.shift(30)
    token_lookup.find_valid_token(secret)
    assert uses.writes == 1
    clock.shift(31)
    token_lookup.find_valid_token(secret)
    assert uses.writes == 2
    token.refresh_from_db()
    assert token.last_used_at is None
    assert token_uses.store() == 1
    token.refresh_from_db()
    assert token.last_used_at == timezone.now() > first
    assert token_uses.store() == 0


def test_late_buffered_use_does_not_move_last_use_backwards(alice, clock, uses):
    token, secret = make_token(alice)
    token_lookup.find_valid_token(secret)
    later = timezone.now() + HOUR
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=later)
    token_uses.store()
    token.refresh_from_db()
    assert token.last_used_at == later


def use_from(address: str, secret: str) -> None:
    request_context.begin(address=address, user_agent="curl", request_id="")
    try:
        token_lookup.find_valid_token(secret)
    finally:
        request_context.end()
    token_uses.store()


def test_first_use_from_another_network_is_a_security_event(alice, clock, uses):
    token, secret = make_token(alice)
    for address in ("192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8::2", "192.0.2.1"):
        clock.shift(1)
        use_from(address, secret)
    found = security_events_of(alice).filter(kind=AuditKind.TOKEN_NEW_NETWORK)
    assert [(event.address, event.token) for event in found] == [("2001:db8::1", token.prefix)]
    token.refresh_from_db()
    assert (token.last_used_from, token.networks) == ("192.0.2.1", ["192.0.2.1", "2001:db8::/64"])


def test_token_used_from_everywhere_is_not_reported_forever(alice, clock, uses):
    token, secret = make_token(alice)
    for number in range(token_uses.MAX_NETWORKS + 3):
        clock.shift(1)
        use_from(f"192.0.2.{number}", secret)
    token.refresh_from_db()
    assert (len(token.networks), token.last_used_from) == (token_uses.MAX_NETWORKS, "192.0.2.22")
    assert security_events_of(alice).filter(kind=AuditKind.TOKEN_NEW_NETWORK).count() == 19


def test_uses_are_stored_with_the_same_number_of_queries(alice, uses, django_assert_num_queries):
    for count in (1, 5):
        for _ in range(count):
            token_lookup.find_valid_token(make_token(alice)[1])
        with django_assert_num_queries(4):
            assert token_uses.store() == count


def test_lookup_is_one_select_without_writes(alice, uses, django_assert_num_queries):
    _token, secret = make_token(alice)
    token_lookup.find_valid_token(secret)
    with django_assert_num_queries(1) as seen:
        token_lookup.find_valid_token(secret)
    assert seen.captured_queries[0]["sql"].startswith("SELECT")


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda token: tokens.revoke_token(actor=token.owner, token_id=token.pk), id="revoked"),
        pytest.param(
            lambda token: ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now()), id="expired"
        ),
        pytest.param(lambda token: type(token.owner).objects.update(is_active=False), id="deactivated"),
        pytest.param(lambda token: ApiToken.objects.filter(pk=token.pk).delete(), id="deleted"),
        pytest.param(
            lambda token: ApiToken.objects.filter(pk=token.pk).update(digest="0" * 64), id="changed"
        ),
    ],
)
def test_change_in_another_process_invalidates_a_cached_token(alice, uses, harm):
    """Rows are changed without the cache, as another process does."""
    token, secret = make_token(alice)
    assert token_lookup.find_valid_token(secret) == (alice, token)
    harm(token)
    assert token_lookup.find_valid_token(secret) is None


def test_gateway_is_notified_when_tokens_end_but_not_of_sign_ins(alice, uses):
    token, _secret = make_token(alice)
    other, _secret = make_token(alice)
    with transaction.atomic():
        alice.save(update_fields=["last_login"])
    assert uses.changes == 0
    tokens.revoke_token(actor=alice, token_id=token.pk)
    assert uses.changes == 1
    with transaction.atomic():
        other.delete()
    assert uses.changes == 2
    alice.is_active = False
    with transaction.atomic():
        alice.save()
    assert uses.changes == 3


def test_revoked_role_is_effective_at_the_next_request(alice, uses):
    _token, secret = make_token(alice)
    type(alice).objects.update(is_operator=True)
    assert token_lookup.find_valid_token(secret)[0].operates
    type(alice).objects.update(is_operator=False)
    assert not token_lookup.find_valid_token(secret)[0].operates


def test_cached_user_and_token_are_not_shared_between_requests(alice, uses):
    _token, secret = make_token(alice)
    user, token = token_lookup.find_valid_token(secret)
    user.is_operator = True
    token.scopes = []
    user, token = token_lookup.find_valid_token(secret)
    assert not user.is_operator
    assert token.scopes != []


def test_list_includes_expired_and_excludes_revoked_tokens(alice, bob, clock):
    kept, _ = make_token(alice)
    expired, _ = make_token(alice, expires_at=timezone.now() + HOUR)
    revoked, _ = make_token(alice)
    make_token(bob)
    tokens.revoke_token(actor=alice, token_id=revoked.pk)
    clock.shift(7200)
    assert set(selectors.tokens_of(alice)) == {kept, expired}


# --- manage.py create_token -----------------------------------------------------------------------


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("create_token", *arguments, stdout=out)
    return out.getvalue()


def test_command_prints_only_the_token(alice):
    printed = run("alice")
    assert printed.count("\n") == 1
    user, token = token_lookup.find_valid_token(printed.strip())
    assert (user, token.scopes, token.expires_at) == (alice, ["all"], None)


def test_command_sets_scopes_name_and_expiry(alice, clock):
    printed = run("alice", "--scopes", "catalog:read,pools:read", "--name", "ci", "--days", "7")
    _, token = token_lookup.find_valid_token(printed.strip())
    assert (token.name, token.scopes) == ("ci", ["catalog:read", "pools:read"])
    assert token.expires_at == timezone.now() + dt.timedelta(days=7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], "not found"),
        (["alice", "--scopes", "nonsense"], "nonsense"),
        (["alice", "--days", "-1"], "negative"),
        (["alice", "--name", " "], "name"),
    ],
)
def test_command_reports_invalid_arguments(alice, arguments, words):
    with pytest.raises(CommandError, match=words):
        run(*arguments)
    assert not ApiToken.objects.exists()


def test_system_creates_tokens_for_any_user(alice):
    made = tokens.create_token(actor=SYSTEM, user=alice, name="x")
    assert Event.objects.get(kind="token.created").actor_label == "Berth"
    assert made.token.owner == alice


def test_pages_with_equal_creation_times_list_each_token_once(as_user, olga, bob, monkeypatch):
    monkeypatch.setattr(token_views, "ROWS_PER_PAGE", 2)
    rows = [make_token(bob)[0] for _number in range(5)]
    ApiToken.objects.update(created_at=rows[0].created_at)
    seen = [
        row.pk for number in (1, 2, 3) for row in as_user(olga).get(f"/tokens/?page={number}").context["page"]
    ]
    assert seen == sorted(row.pk for row in rows)
