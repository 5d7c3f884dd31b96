"""What every answer carries and what is logged of refusals, whoever asks."""

from __future__ import annotations

import json
import logging

import pytest
from django.contrib import messages
from django.test import Client, RequestFactory
from django.urls import get_resolver

from portal.common import logs
from portal.common.message_storage import PortalCookieStorage
from portal.common.middleware import NoStoreMiddleware
from tests.factories import PASSWORD, make_token
from tests.permissions.test_matrix import patterns

pytestmark = pytest.mark.django_db
PATHS = ("/", "/sign-in/", "/gpus/", "/no/such/page", "/static/berth/berth.css", "/api/v1/me", "/api/v1/schema/")


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_its_headers(as_user, alice, path):
    for client in (as_user(alice), Client()):
        answered = client.get(path)
        assert answered["X-Content-Type-Options"] == "nosniff"
        assert answered["Referrer-Policy"] == "same-origin"
        assert "frame-ancestors 'none'" in answered["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in answered
        answered.close()
        kind = answered.get("Content-Type", "text/html; charset=utf-8").replace('"', "")
        # JSON has no charset of its own: it is UTF-8 (RFC 8259).
        assert "charset=utf-8" in kind or "json" in kind or kind.startswith("application/vnd.oai.openapi"), kind


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith("/static/")])
def test_nothing_of_a_person_stays_in_a_cache(as_user, alice, path):
    assert "no-store" in as_user(alice).get(path)["Cache-Control"]


def test_a_view_that_says_how_long_it_may_be_kept_is_heard(rf: RequestFactory):
    from django.http import HttpResponse

    kept = NoStoreMiddleware(lambda _request: HttpResponse(headers={"Cache-Control": "max-age=60"}))(rf.get("/"))
    assert kept["Cache-Control"] == "max-age=60"


def test_assets_are_kept(client):
    answered = client.get("/static/berth/berth.css")
    answered.close()
    assert "no-store" not in answered["Cache-Control"]


def test_over_https_the_name_and_all_below_it_stay_with_it(client, settings):
    settings.SECURE_HSTS_SECONDS = 31_536_000
    from django.middleware.security import SecurityMiddleware

    from django.http import HttpResponse

    request = RequestFactory().get("/", secure=True)
    answered = SecurityMiddleware(lambda _request: HttpResponse())(request)
    assert answered["Strict-Transport-Security"] == "max-age=31536000; includeSubDomains"


def test_no_address_answers_trace(as_user, alice, catalog):
    client = as_user(alice)
    some = "0" * 8 + "-0000-0000-0000-" + "0" * 12
    for route, _pattern in patterns(get_resolver().url_patterns):
        path = "/" + route
        for kind in ("uuid", "str", "slug", "int", "username", "resource"):
            while f"<{kind}:" in path:
                before, _, rest = path.partition(f"<{kind}:")
                path = before + {"uuid": some, "int": "1", "resource": "gpu:h100"}.get(kind, "x") + rest.partition(">")[2]
        answered = client.generic("TRACE", path, headers={"X-Probe": "echo-me"})
        assert answered.status_code in {302, 400, 401, 403, 404, 405}, route
        assert b"echo-me" not in answered.content


# --- cookies --------------------------------------------------------------------------------------


def test_each_cookie_is_for_its_purpose_alone(alice, settings):
    browser = Client()
    browser.post("/theme/", {"theme": "dark"})
    browser.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    browser.post("/account/notices/", {"mail": "on"})
    assert set(browser.cookies) == {"berth", "berth-csrf", "berth-theme", "berth-messages"} & set(browser.cookies)
    assert {"berth", "berth-theme", "berth-messages"} <= set(browser.cookies)
    for name, cookie in browser.cookies.items():
        assert (cookie["samesite"], cookie["domain"], cookie["path"]) == ("Lax", "", "/"), name
        # The theme is what a script of ours writes.
        assert bool(cookie["httponly"]) == (name != "berth-theme"), name


def test_over_https_no_workspace_can_plant_a_cookie_of_the_portals():
    """Names are fixed when the settings are read, so they are read once more as they are over https."""
    import os
    import subprocess
    import sys

    code = (
        "import django; django.setup()\n"
        "from django.conf import settings as s\n"
        "from portal.common.message_storage import PortalCookieStorage as m\n"
        "print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.BERTH_THEME_COOKIE, m.cookie_name)\n"
        "print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SECURE_HSTS_SECONDS)"
    )
    environ = os.environ | {"DJANGO_SETTINGS_MODULE": "portal.settings", "BERTH_PUBLIC_URL": "https://berth.example.org"}
    said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout
    names, flags = said.splitlines()[-2:]
    assert all(name.startswith("__Host-") for name in names.split())
    assert flags == "True True 31536000"


def test_a_message_that_was_tampered_with_is_none(rf: RequestFactory):
    request = rf.get("/")
    request.COOKIES[PortalCookieStorage.cookie_name] = 'forged:[["__json_message",0,25,"Send me your password"]]'
    assert list(PortalCookieStorage(request)) == []
    assert messages.INFO == 20


# --- the log --------------------------------------------------------------------------------------


def refusals(caplog) -> list[dict]:
    return [record.msg for record in caplog.records if isinstance(record.msg, dict) and record.msg["event"] == "request refused"]


def test_who_was_refused_what_is_logged(as_user, with_token, alice, bob, caplog):
    as_user(bob).get("/audit/")
    _, secret = make_token(alice, "teams:read")
    Client(headers={"Authorization": f"Bearer {secret}"}).get("/api/v1/workspaces")
    Client().get("/api/v1/me")
    found = refusals(caplog)
    assert [(one["status"], one["route"], one["user"]) for one in found] == [
        (403, "audit/", str(bob.pk)),
        (403, found[1]["route"], ""),
        (401, found[2]["route"], ""),
    ]
    assert secret.startswith(found[1]["token"]) and secret not in caplog.text
    assert all(one["request_id"] for one in found)


def test_a_link_that_signs_in_is_in_no_log(ada, caplog):
    from portal.accounts import users

    link = users.invite(actor=ada, username="gina").url
    browser = Client(enforce_csrf_checks=True)
    assert browser.post("/" + link.split("/", 3)[3], {"password": "x"}).status_code == 403
    assert refusals(caplog)[0]["route"] == "welcome/<uuid:user_id>/<str:link>/"
    assert link.rstrip("/").rsplit("/", 1)[1] not in caplog.text


def test_what_somebody_typed_makes_no_line_of_its_own():
    record = logging.makeLogRecord({"msg": "name\n{\"event\": \"signed in\"}\r\x1b[2Jx", "levelno": logging.WARNING})
    line = logs.formatter().format(record)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert json.loads(line)["event"].startswith("name\n")
