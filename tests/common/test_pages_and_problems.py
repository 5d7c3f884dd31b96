"""Errors have a code, a request id and one next action, on pages and as problems."""

from __future__ import annotations

import uuid

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import Client

from portal.common.texts import strip_nul, strip_nul_json
from tests import sites

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines


@pytest.fixture
def page(as_user, alice):
    return as_user(alice)


def test_missing_object_is_a_404_page_with_request_id(page):
    answered = page.get(f"/workspaces/{uuid.uuid4()}/")
    assert answered.status_code == 404
    text = answered.content.decode()
    assert answered["X-Request-Id"] in text
    assert "Workspace not found" in text


def test_plain_request_ids_are_kept_and_others_replaced(page):
    assert page.get("/", headers={"X-Request-Id": "abcdef-123"})["X-Request-Id"] == "abcdef-123"
    for bad in ("short", "x" * 65, "<script>alert(1)</script>", "a b c d e f g"):
        assert page.get("/", headers={"X-Request-Id": bad})["X-Request-Id"] != bad


def test_csp_allows_no_foreign_code_or_frames(page):
    answered = page.get("/")
    policy = answered["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    for directive in ("frame-ancestors 'none'", "object-src 'none'", "base-uri 'none'"):
        assert directive in policy
    assert answered["X-Frame-Options"] == "DENY"
    assert answered["X-Content-Type-Options"] == "nosniff"
    assert "<script>" not in answered.content.decode()
    assert 'style="' not in answered.content.decode()


@pytest.mark.parametrize("path", ["/", "/workspaces/new/", "/teams/", "/pools/", "/account/tokens/"])
@pytest.mark.parametrize("query", ["q=%00", "q=%ED%A0%80", "page=-1", "page=x", "state=%00", "template=%00"])
def test_arbitrary_query_parameters_cause_no_server_error(page, pool, team, path, query):
    assert page.get(f"{path}?{query}").status_code in {200, 302, 400, 404}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/sign-in/", {"username": "a\x00", "password": "x\x00", "next": "/\x00"}),
        ("/teams/vision/", {"username": "a\x00", "role": "member"}),
        ("/teams/vision/members/a%00/role/", {"role": "member"}),
        ("/teams/vision/members/a%00/revoke/", {}),
        ("/workspaces/new/", {"template": "a\x00", "flavor": "cpu-small", "team": "vision"}),
        ("/workspaces/new/", {"template": "jupyterlab", "flavor": "a\x00", "team": "vision"}),
        ("/workspaces/new/", {"template": "jupyterlab", "flavor": "cpu-small", "team": "a\x00"}),
        (
            "/workspaces/new/",
            {"template": "jupyterlab", "flavor": "cpu-small", "team": "vision", "name": "a\x00"},
        ),
        ("/account/tokens/", {"name": "a\x00", "scopes": "all", "expires": "7"}),
        ("/account/", {"old_password": "a\x00"}),
    ],
)
def test_arbitrary_form_data_causes_no_server_error(page, pool, team, path, data):
    assert page.post(path, data).status_code in {200, 302, 400, 404, 409}


def test_system_checks_pass():
    assert run_checks() == []


def test_missing_secrets_stop_the_start(settings):
    settings.SECRET_KEY = "insecure-" + "x" * 60
    settings.BERTH_GATEWAY_SECRET = ""
    found = {message.id for message in run_checks(include_deployment_checks=True)}
    assert {"common.E001", "common.E002"} <= found


@pytest.mark.parametrize(
    ("given", "kept"),
    [("", ""), ("plain ☃", "plain ☃"), ("a\x00b", "ab"), ("\ud800x", "?x"), ("\x1b[0m\r\n", "\x1b[0m\r\n")],
)
def test_nul_characters_are_removed(given, kept):
    assert strip_nul(given) == kept
    assert strip_nul_json({given: [given, 1, None, {"x": given}]}) == {kept: [kept, 1, None, {"x": kept}]}


def test_models_and_migrations_agree(settings):
    settings.MIGRATION_MODULES = {}  # tests create their tables from the models
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_invalid_host_is_a_problem_over_rest_and_a_page_in_browsers(client: Client) -> None:
    answer = client.get("/api/v1/version", headers={"Host": "?%+"})
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert answer.json()["code"] == "bad_request"
    page = client.get("/sign-in/", headers={"Host": "?%+"})
    assert (page.status_code, page["Content-Type"]) == (400, "text/html; charset=utf-8")
