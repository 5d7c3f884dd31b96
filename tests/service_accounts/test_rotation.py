"""Token rotation, and the maximum lifetime set by the site."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import selectors, service_accounts, token_lookup, tokens
from portal.people.accounts.models import ApiToken
from tests import sites
from tests.factories import make_token

pytestmark = pytest.mark.django_db
WORLD = sites.people
DAY = dt.timedelta(days=1)


@pytest.fixture
def ci(team, alice):
    return service_accounts.create(actor=alice, team=team, name="ci")


def works(secret: str) -> bool:
    return token_lookup.find_valid_token(secret) is not None


def test_both_tokens_work_until_the_old_one_expires(ci, alice, clock):
    old = tokens.create_token(actor=alice, user=ci, name="ci", scopes=["teams:read"])
    new = tokens.rotate_token(actor=alice, token_id=old.token.pk, overlap_hours=2)
    assert works(old.secret) and works(new.secret)
    assert (new.token.name, new.token.scopes, new.token.replaces) == ("ci", ["teams:read"], old.token)
    clock.shift(2 * 3600 + 1)
    assert not works(old.secret) and works(new.secret)
    entry = Event.objects.get(kind="token.rotated")
    assert entry.data["replaced_by"] == str(new.token.pk) and entry.actor == alice


def test_old_token_ends_at_once_without_overlap(ci, alice, clock):
    old = tokens.create_token(actor=alice, user=ci, name="ci")
    tokens.rotate_token(actor=alice, token_id=old.token.pk, overlap_hours=0)
    assert not works(old.secret)


def test_new_token_has_the_original_lifetime_of_the_old_one(ci, alice, clock):
    old = tokens.create_token(actor=alice, user=ci, name="ci", expires_at=timezone.now() + 10 * DAY)
    clock.shift(8 * 86400)
    new = tokens.rotate_token(actor=alice, token_id=old.token.pk)
    assert abs(new.token.expires_at - (timezone.now() + 10 * DAY)) < dt.timedelta(minutes=1)


def test_overlap_does_not_extend_the_old_token(ci, alice):
    soon = timezone.now() + dt.timedelta(hours=1)
    old = tokens.create_token(actor=alice, user=ci, name="ci", expires_at=soon)
    tokens.rotate_token(actor=alice, token_id=old.token.pk, overlap_hours=100)
    assert ApiToken.objects.get(pk=old.token.pk).expires_at == soon


def test_token_is_rotated_once_and_only_while_valid(ci, alice, clock):
    old = tokens.create_token(actor=alice, user=ci, name="ci")
    tokens.rotate_token(actor=alice, token_id=old.token.pk, overlap_hours=1)
    with pytest.raises(StateConflict) as again:
        tokens.rotate_token(actor=alice, token_id=old.token.pk)
    assert again.value.reason.code == "token_rotated"
    expired = tokens.create_token(actor=alice, user=ci, name="x", expires_at=timezone.now() + DAY)
    clock.shift(86401)
    with pytest.raises(StateConflict):
        tokens.rotate_token(actor=alice, token_id=expired.token.pk)


@pytest.mark.parametrize("hours", [-1, tokens.MAX_OVERLAP_HOURS + 1])
def test_overlap_out_of_range_is_refused(ci, alice, hours):
    token = tokens.create_token(actor=alice, user=ci, name="ci").token
    with pytest.raises(InvalidInput):
        tokens.rotate_token(actor=alice, token_id=token.pk, overlap_hours=hours)


def test_only_users_who_may_create_a_token_can_rotate_it(ci, alice, bob, charlie, olga):
    token = tokens.create_token(actor=alice, user=ci, name="ci").token
    for actor in (bob, charlie):
        with pytest.raises(NotFound):
            tokens.rotate_token(actor=actor, token_id=token.pk)
    own = make_token(alice)[0]
    with pytest.raises(NotAllowed):
        tokens.rotate_token(actor=olga, token_id=own.pk)


def test_expiring_token_cannot_extend_itself(api, alice, ci):
    made = tokens.create_token(
        actor=alice, user=ci, name="ci", scopes=["tokens:write"], expires_at=timezone.now() + DAY
    )
    with pytest.raises(NotAllowed):
        tokens.rotate_token(actor=ci, token_id=made.token.pk, made_with=made.token)


# --- BERTH_TOKEN_MAX_DAYS -------------------------------------------------------------------------


def test_site_limit_applies_to_new_and_existing_tokens(alice, clock, settings):
    old = make_token(alice)[1]
    settings.BERTH_TOKEN_MAX_DAYS = 30
    new, secret = make_token(alice)
    assert new.ends_at == new.created_at + 30 * DAY
    clock.shift(29 * 86400)
    assert works(old) and works(secret)
    clock.shift(86401)
    assert not works(old) and not works(secret)
    assert selectors.still_valid(alice, new) is False
    settings.BERTH_TOKEN_MAX_DAYS = 0
    assert works(old)


def test_later_expiry_is_refused_with_the_limit(api, alice, settings):
    settings.BERTH_TOKEN_MAX_DAYS = 30
    late = (timezone.now() + 31 * DAY).isoformat()
    refused = api(alice).post("tokens", {"name": "x", "expires_at": late})
    assert refused.status_code == 400 and list(refused.json()["errors"]) == ["expires_at"]
    made = api(alice).post("tokens", {"name": "x"})
    assert made.json()["expires_at"] is not None


def test_page_offers_lifetimes_within_the_limit_only(as_user, alice, settings):
    settings.BERTH_TOKEN_MAX_DAYS = 45
    page = as_user(alice).get("/account/tokens/").content.decode()
    assert "In 30 days" in page and "In 90 days" not in page and "Never" not in page
    made = as_user(alice).post("/account/tokens/", {"name": "x", "expires": "", "scopes": ["all"]})
    assert made.status_code == 200 and "shown only once" in made.content.decode()


# --- all tokens of the site -----------------------------------------------------------------------


def test_rest_lists_own_tokens_by_default(api, olga, alice, bob, ci):
    tokens.create_token(actor=alice, user=ci, name="nightly")
    make_token(bob)

    def names(path, actor):
        return [(row["owner"], row["name"]) for row in api(actor).get(path).json()["results"]]

    assert ("svc-ci", "nightly") not in names("tokens", olga)
    assert ("svc-ci", "nightly") in names("tokens?whose=all", olga)
    assert names("tokens?owner=bob", olga) == [("bob", "test")]
    assert {user for user, _ in names("tokens?team=vision", olga)} >= {"svc-ci", "bob"}
    assert names("tokens?kind=service", olga) == [("svc-ci", "nightly")]
    assert ("svc-ci", "nightly") in names("tokens?whose=all", alice)
    assert names("tokens?owner=bob", alice) == []
    assert names("tokens?kind=service", bob) == []


def test_rest_filters_unused_and_expiring_tokens(api, olga, bob, clock):
    make_token(bob, expires_at=timezone.now() + 5 * DAY)
    clock.shift(3 * 86400)
    rows = lambda path: len(api(olga).get(path).json()["results"])  # noqa: E731
    assert rows("tokens?owner=bob&unused_days=2") == 1
    assert rows("tokens?owner=bob&unused_days=4") == 0
    assert rows("tokens?owner=bob&expires_days=3") == 1
    assert rows("tokens?owner=bob&expires_days=1") == 0


def test_page_filters_tokens_and_operator_revokes(as_user, olga, alice, bob, ci):
    token = tokens.create_token(actor=alice, user=ci, name="nightly").token
    make_token(bob)
    client = as_user(olga)
    rows = lambda query: client.get(f"/tokens/?{query}").content.decode().partition("<tbody>")[2]  # noqa: E731
    assert "nightly" in rows("") and ">test" in rows("")
    assert "nightly" in rows("team=vision&kind=service&owner=svc") and ">test" not in rows("kind=service")
    assert "nightly" not in rows("unused=30") and "nightly" not in rows("expires=7")
    assert "nightly" in rows("unused=nonsense&team=nonsense")
    response = client.post(f"/account/tokens/{token.pk}/revoke/", {"next": "/tokens/?kind=service"})
    assert response["Location"] == "/tokens/?kind=service"
    assert "nightly" not in rows("")
