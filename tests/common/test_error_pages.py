"""Error pages: with menu for signed-in users, without it where the database may have failed."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from django.db import OperationalError
from django.test import Client

from portal.common.errors import NotAllowed, Unavailable
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import LONG_TEXT, split_sentence

pytestmark = pytest.mark.django_db
MENU = 'class="nav main'


def body_of(response: Any, status: int) -> str:
    assert response.status_code == status
    return str(response.content.decode())


def test_error_pages_of_signed_in_users_have_the_menu(as_user, charlie, team):
    client = as_user(charlie)
    for path, status, code in (("/no-such-page/", 404, "not_found"), ("/users/", 403, "reason-codes/#")):
        html = body_of(client.get(path, headers={"X-Request-ID": "abc"}), status)
        assert MENU in html and "Go to your workspaces" in html
        assert html.count("<main") == html.count("<h1") == 1
        assert code in html and "Request" in html
    assert MENU not in body_of(Client().get("/no-such-page/"), 404)


def test_error_pages_without_a_database_have_no_menu(as_user, bob):
    client = as_user(bob)
    down = "portal.web.home.views.home.presenters.cards"
    with patch(down, side_effect=Unavailable(Reason(CommonCode.STORAGE_BUSY))):
        html = body_of(client.get("/"), 503)
    assert MENU not in html and "Try again" in html and "storage_busy" in html
    client.raise_request_exception = False
    with patch(down, side_effect=OperationalError("gone")):
        html = body_of(client.get("/"), 500)
    assert MENU not in html and "internal_error" in html
    with patch("portal.people.accounts.request_limits.count_request", return_value=60):
        html = body_of(client.get("/"), 429)
    assert MENU not in html and "throttled" in html


def test_long_reason_shows_its_first_sentence_and_the_rest_on_demand(as_user, bob):
    long = "The node refused. " + "It said more. " * 30
    with (
        patch(
            "portal.web.home.views.home.presenters.cards",
            side_effect=NotAllowed(Reason(CommonCode.STORAGE_BUSY)),
        ),
        patch.object(NotAllowed, "message", long),
    ):
        html = body_of(as_user(bob).get("/"), 403)
    assert "<p>The node refused." in html
    assert '<details><summary>Details</summary><p class="pre">It said more.' in html
    short = "One sentence. Another."
    assert split_sentence(short) == (short, "")
    assert split_sentence("x" * (LONG_TEXT + 1)) == ("x" * (LONG_TEXT + 1), "")
    assert split_sentence("First\nsecond") == ("First", "second")
