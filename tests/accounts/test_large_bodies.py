"""Permission to send a large body, which the front door checks first."""

from __future__ import annotations

import pytest
from django.test import Client

from portal.common import rate_limits
from portal.common.front_door import LARGE_BODY_PATH
from portal.embedded import views
from portal.embedded.proxy import MAX_LARGE_BODIES
from portal.people.accounts.models import User
from tests.factories import make_token

pytestmark = pytest.mark.django_db


def test_session_or_token_is_admitted(as_user, alice: User) -> None:
    assert as_user(alice).get(LARGE_BODY_PATH).status_code == 204
    _token, secret = make_token(alice)
    answered = Client().get(LARGE_BODY_PATH, headers={"authorization": f"Bearer {secret}"})
    assert answered.status_code == 204


def test_anonymous_clients_get_a_problem_or_a_redirect_to_sign_in(client: Client) -> None:
    for headers in ({}, {"authorization": "Bearer berth_invented"}, {"cookie": "sessionid=invented"}):
        answered = client.get(LARGE_BODY_PATH, headers=headers)
        assert answered.status_code == 401
        assert answered["Content-Type"] == "application/problem+json"
    page = client.get(LARGE_BODY_PATH, headers={"accept": "text/html,*/*;q=0.8"})
    assert (page.status_code, page["Location"]) == (302, "/sign-in/")


def test_uploads_are_limited_per_user(as_user, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, rate_limits.Limit]] = []

    def count(what: str, limit: rate_limits.Limit) -> int:
        asked.append((what, limit))
        return 7

    monkeypatch.setattr(views.rate_limits, "count", count)
    answered = as_user(alice).get(LARGE_BODY_PATH)
    assert (answered.status_code, answered["Retry-After"]) == (429, "7")
    assert asked == [(f"large-bodies:{alice.pk}", views.LARGE_BODIES)]
    assert 2 * views.LARGE_BODIES.count < MAX_LARGE_BODIES
