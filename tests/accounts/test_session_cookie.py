"""A late response to a request with an ended session must not sign its user out of the next one."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore

pytestmark = pytest.mark.django_db
PART = {"HX-Request": "true"}
STREAM = {"Sec-Fetch-Mode": "cors"}


def deleted(client, headers):
    answer = client.get("/inbox/badge/", headers=headers)
    cookie = answer.cookies.get(settings.SESSION_COOKIE_NAME)
    return cookie is not None and not cookie.value


@pytest.mark.parametrize(
    ("headers", "goes"), [(PART, False), (STREAM, False), ({}, True), ({"Sec-Fetch-Mode": "navigate"}, True)]
)
def test_only_pages_delete_the_cookie_of_an_ended_session(as_user, alice, headers, goes):
    client = as_user(alice)
    assert not deleted(client, headers)
    SessionStore(client.session.session_key).delete()
    assert deleted(client, headers) is goes
