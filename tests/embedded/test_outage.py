"""While the web process is down, the front door shows an outage page, and programs get a problem."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from portal.embedded import configs, outage
from portal.embedded.environment import Instance
from portal.embedded.preflight import find_binaries
from provisioning.service.console import Problem

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def without_web(instance: Instance) -> Iterator[Instance]:
    """The front door of an instance without its other services."""
    try:
        caddy = find_binaries().caddy
    except Problem:
        pytest.skip("no Caddy on this machine")
    for folder in (instance.run_dir, instance.local_dir):
        folder.mkdir(parents=True)
    secrets = dict.fromkeys(("redis_control", "redis_node", "gateway_secret"), "s")
    configs.write(instance, {**secrets, "control_key": "c0" * 32, "node_key": "a0" * 32})
    with subprocess.Popen(configs.front_door_argv(instance, caddy)) as process:
        yield instance
        process.terminate()


def request_page(instance: Instance, path: str, headers: dict[str, str]) -> httpx.Response:
    deadline = time.monotonic() + 15
    while True:
        try:
            found = httpx.get(f"http://127.0.0.1:{instance.port}{path}", headers=headers)
        except httpx.TransportError:
            found = None
        if found is not None and found.status_code == 502:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_browser_gets_a_self_refreshing_outage_page(without_web: Instance) -> None:
    page = request_page(without_web, "/workspaces/new/?flavor=gpu-1", BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Berth is starting" in page.text
    assert "Running work continues, and nothing is lost." in page.text
    assert page.text.count("<a ") == 1, "one next action"
    assert '<meta http-equiv="refresh" content="5">' in page.text
    assert "Bad Gateway" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]


def test_program_gets_a_problem_document(without_web: Instance) -> None:
    problem = request_page(without_web, "/api/v1/workspaces", {"Accept": "application/json"})
    assert problem.headers["content-type"] == "application/problem+json"
    assert problem.json()["status"] == 502
    assert problem.json()["message"].endswith("Try again in a few seconds.")
    assert problem.headers["retry-after"] == "5"


def test_style_hash_matches_the_csp(without_web: Instance) -> None:
    page = request_page(without_web, "/", BROWSER)
    named = re.search(r"sha256-(\S+?)'", page.headers["content-security-policy"])
    style = re.search(r"<style>(.*)</style>", page.text, re.S)
    assert named and style
    assert base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode() == named[1]


def test_page_is_served_unchanged(without_web: Instance) -> None:
    """Caddy interprets braces in its configuration; pages must not contain any."""
    bodies = [route["handle"][0]["body"] for route in outage.routes()]
    assert request_page(without_web, "/", BROWSER).text in bodies
    assert request_page(without_web, "/", {"Accept": "*/*"}).text in bodies


def test_unreachable_gateway_process_shows_the_page(without_web: Instance) -> None:
    """Without forward-auth, workspaces are closed, and the page names the cause."""
    workspace = f"ws-{'1' * 32}.localhost"
    for host, path in (
        ("localhost", "/workspaces/11111111-1111-1111-1111-111111111111/events/"),
        (workspace, "/.berth/page.css"),
        (workspace, "/lab"),
    ):
        page = request_page(without_web, path, {**BROWSER, "Host": host})
        assert "Berth does not answer" in page.text


def test_head_has_the_status_and_no_body(without_web: Instance) -> None:
    request_page(without_web, "/", BROWSER)
    found = httpx.head(f"http://127.0.0.1:{without_web.port}/", headers=BROWSER)
    assert (found.status_code, found.content) == (502, b"")
