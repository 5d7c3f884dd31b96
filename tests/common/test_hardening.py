"""Security headers, cookies, caching and logs of every response."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.http import HttpResponse
from django.middleware.security import SecurityMiddleware
from django.test import Client, RequestFactory
from django.urls import get_resolver

from portal.common import logs
from portal.common.front_door import PERMISSIONS_POLICY
from portal.common.message_storage import PortalCookieStorage
from portal.common.middleware import NoStoreMiddleware
from portal.people.accounts import users
from tests.factories import PASSWORD, make_token
from tests.permissions.test_matrix import patterns

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[2]
PATHS = (
    "/",
    "/sign-in/",
    "/gpus/",
    "/no/such/page",
    "/static/berth/berth.css",
    "/api/v1/me",
    "/api/v1/schema/",
)


@pytest.mark.parametrize("path", PATHS)
def test_every_response_has_security_headers(as_user, alice, path):
    for client in (as_user(alice), Client()):
        answered = client.get(path)
        assert answered["X-Content-Type-Options"] == "nosniff"
        assert answered["Referrer-Policy"] == "same-origin"
        assert answered["Permissions-Policy"] == PERMISSIONS_POLICY
        assert "frame-ancestors 'none'" in answered["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in answered
        answered.close()
        kind = answered.get("Content-Type", "text/html; charset=utf-8").replace('"', "")
        # JSON has no charset of its own: it is UTF-8 (RFC 8259).
        assert "charset=utf-8" in kind or "json" in kind or kind.startswith("application/vnd.oai.openapi"), (
            kind
        )


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith("/static/")])
def test_personal_pages_are_not_cached(as_user, alice, path):
    assert "no-store" in as_user(alice).get(path)["Cache-Control"]


def test_cache_control_of_a_view_is_kept(rf: RequestFactory):
    kept = NoStoreMiddleware(lambda _request: HttpResponse(headers={"Cache-Control": "max-age=60"}))(
        rf.get("/")
    )
    assert kept["Cache-Control"] == "max-age=60"


def test_assets_are_cached(client):
    answered = client.get("/static/berth/berth.css")
    answered.close()
    assert "no-store" not in answered["Cache-Control"]


def test_hsts_includes_subdomains(client, settings):
    settings.SECURE_HSTS_SECONDS = 31_536_000
    request = RequestFactory().get("/", secure=True)
    answered = SecurityMiddleware(lambda _request: HttpResponse())(request)
    assert answered["Strict-Transport-Security"] == "max-age=31536000; includeSubDomains"


@pytest.mark.thorough("asks every address; `make test` has each method in the permission matrix")
def test_trace_is_refused_everywhere(as_user, alice, catalog):
    client = as_user(alice)
    some = "0" * 8 + "-0000-0000-0000-" + "0" * 12
    for route, _pattern in patterns(get_resolver().url_patterns):
        path = "/" + route
        for kind in ("uuid", "str", "slug", "int", "username", "resource"):
            while f"<{kind}:" in path:
                before, _, rest = path.partition(f"<{kind}:")
                path = (
                    before
                    + {"uuid": some, "int": "1", "resource": "gpu:h100"}.get(kind, "x")
                    + rest.partition(">")[2]
                )
        answered = client.generic("TRACE", path, headers={"X-Probe": "echo-me"})
        assert answered.status_code in {302, 400, 401, 403, 404, 405}, route
        assert b"echo-me" not in answered.content


@pytest.mark.parametrize(
    "path",
    ["/static/", "/static/berth/", "/static/../manage.py", "/.git/config", "/docs/adr/../../manage.py"],
)
def test_no_directory_listing_and_no_files_beside_the_assets(as_user, alice, path):
    assert as_user(alice).get(path).status_code == 404


def test_every_page_has_a_sign_out_form(as_user, alice, team, pool):
    for path in ("/", "/account/", "/gpus/", "/queue/", f"/teams/{team.slug}/"):
        assert 'action="/sign-out/"' in as_user(alice).get(path).content.decode(), path


# --- the source -----------------------------------------------------------------------------------


SOURCES = [path for folder in ("portal", "provisioning") for path in (ROOT / folder).rglob("*.py")]
# A workspace's own program, in its user's sandbox.
OWN_PROGRAMS = ROOT / "provisioning" / "agent" / "apps"
BARRED_CALLS = {
    "eval",
    "exec",
    "mark_safe",
    "os.system",
    "os.popen",
    "pickle.loads",
    "marshal.loads",
}
# Modules that read or write YAML.
YAML = {
    ROOT / "portal" / "catalog" / "environments" / "conda.py",
    ROOT / "portal" / "catalog" / "initial_catalog.py",
    ROOT / "portal" / "site_file" / "exporting.py",
    ROOT / "portal" / "site_file" / "reading.py",
}
PLAIN_YAML = {
    *("safe_load", "safe_dump", "dump", "SafeLoader", "SafeDumper", "parse", "compose"),
    *("Node", "ScalarNode", "SequenceNode", "MappingNode", "YAMLError", "MarkedYAMLError"),
}
# The product's documents, whose parser passes no HTML through.
DOCUMENTS = ROOT / "portal" / "web" / "documents" / "rendering.py"
# Only SAML is XML; its module configures the parser.
XML = ROOT / "portal" / "people" / "identity" / "saml.py"
BARRED_IMPORTS = {"pickle", "marshal", "shelve", "xml", "lxml", "defusedxml", "yaml"}


def barred(path: Path, module: str) -> bool:
    name = module.partition(".")[0]
    return name in BARRED_IMPORTS and (path, name) != (XML, "lxml") and not (path in YAML and name == "yaml")


def called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=base), attr=name):
            return f"{base}.{name}"
    return ""


def test_no_input_becomes_code_markup_or_a_command_line():
    assert len(SOURCES) > 100
    found = []
    for path in SOURCES:
        if path.is_relative_to(OWN_PROGRAMS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                shell = any(
                    word.arg == "shell"
                    and not (isinstance(word.value, ast.Constant) and word.value.value is False)
                    for word in node.keywords
                )
                trusted = path == DOCUMENTS and called(node) == "mark_safe"
                if (
                    (called(node) in BARRED_CALLS and not trusted)
                    or shell
                    or called(node).endswith(".from_string")
                ):
                    found.append(f"{path}:{node.lineno}")
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            found += [f"{path}:{node.lineno}" for name in names if barred(path, name)]
    assert not found


def test_yaml_is_loaded_without_python_objects():
    """Only safe functions of the library are used, and no other loader is passed."""
    for path in YAML:
        tree = ast.parse(path.read_text())
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "yaml"
        }
        assert used and used <= PLAIN_YAML, path
        loaders = {"yaml.SafeLoader"} | {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and [ast.unparse(base) for base in node.bases] == ["yaml.SafeLoader"]
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in {"yaml.parse", "yaml.compose"}:
                (loader,) = [word.value for word in node.keywords if word.arg == "Loader"]
                assert ast.unparse(loader) in loaders, path
            if isinstance(node, ast.Call) and called(node) == "yaml.dump":
                (dumper,) = [ast.unparse(word.value) for word in node.keywords if word.arg == "Dumper"]
                bases = [ast.unparse(base) for each in ast.walk(tree) if isinstance(each, ast.ClassDef)
                         and each.name == dumper for base in each.bases]  # fmt: skip
                assert bases == ["yaml.SafeDumper"], path


def test_templates_and_scripts_escape_text():
    for path in (ROOT / "templates").rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*(safe|safeseq)\b|autoescape\s+off", text), path
    scripts = sorted((ROOT / "static" / "berth").glob("*.js"))
    assert scripts
    for path in scripts:
        text = path.read_text()
        barred = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|postMessage"
        assert not re.search(barred, text), path
        # Input at the end of a session, without secrets: docs/security.md#sessions.
        stores = (
            "localStorage|indexedDB" if path.name == "drafts.js" else "localStorage|sessionStorage|indexedDB"
        )
        assert not re.search(stores, text), path
    assert '"historyCacheSize":0' in (ROOT / "templates" / "document.html").read_text()


# --- cookies --------------------------------------------------------------------------------------


def test_cookie_attributes(alice, settings):
    browser = Client()
    set_by = [
        browser.post("/theme/", {"theme": "dark"}),
        browser.get("/sign-in/"),
        browser.post("/sign-in/", {"username": "alice", "password": PASSWORD}),
        browser.post("/account/notices/", {"mail": "on"}),
    ]
    cookies = {name: cookie for answered in set_by for name, cookie in answered.cookies.items()}
    assert {"berth", "berth-csrf", "berth-theme", "berth-messages"} <= set(cookies)
    for name, cookie in cookies.items():
        assert name == "berth" or name.startswith("berth-"), name
        assert (cookie["samesite"], cookie["domain"], cookie["path"]) == ("Lax", "", "/"), name
        # The theme is written by a script.
        assert bool(cookie["httponly"]) == (name != "berth-theme"), name


def test_workspaces_cannot_set_portal_cookies_over_https():
    """Cookie names are fixed when settings load, so the settings are loaded again for https."""
    code = (
        "import django; django.setup()\n"
        "from django.conf import settings as s\n"
        "from portal.common.message_storage import PortalCookieStorage as m\n"
        "print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.BERTH_THEME_COOKIE, m.cookie_name)\n"
        "print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SECURE_HSTS_SECONDS)"
    )
    environ = os.environ | {
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "BERTH_PUBLIC_URL": "https://berth.example.org",
    }
    said = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    ).stdout
    names, flags = said.splitlines()[-2:]
    assert all(name.startswith("__Host-") for name in names.split())
    assert flags == "True True 31536000"


def test_tampered_message_cookie_is_ignored(rf: RequestFactory):
    request = rf.get("/")
    request.COOKIES[PortalCookieStorage.cookie_name] = (
        'forged:[["__json_message",0,25,"Send me your password"]]'
    )
    assert list(PortalCookieStorage(request)) == []


# --- the log --------------------------------------------------------------------------------------


def refusals(caplog) -> list[dict]:
    return [
        record.msg
        for record in caplog.records
        if isinstance(record.msg, dict) and record.msg["event"] == "request refused"
    ]


def test_refusals_are_logged(as_user, with_token, alice, bob, caplog):
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


def test_sign_in_links_are_not_logged(ada, caplog):
    link = users.invite(actor=ada, username="gina").url
    browser = Client(enforce_csrf_checks=True)
    assert browser.post("/" + link.split("/", 3)[3], {"password": "x"}).status_code == 403
    assert refusals(caplog)[0]["route"] == "welcome/<uuid:user_id>/<str:link>/"
    assert link.rstrip("/").rsplit("/", 1)[1] not in caplog.text


def test_user_input_cannot_add_log_lines():
    record = logging.makeLogRecord(
        {"msg": 'name\n{"event": "signed in"}\r\x1b[2Jx', "levelno": logging.WARNING}
    )
    line = logs.formatter().format(record)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert json.loads(line)["event"].startswith("name\n")
