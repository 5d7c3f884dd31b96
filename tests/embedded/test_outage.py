"""While the web process is away, Traefik shows a page of ours, and programs get a problem document."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from portal.embedded import configs, outage
from portal.embedded.environment import Instance
from portal.embedded.preflight import find_binaries
from provisioning.node.gateway import Certificates
from provisioning.service.console import Problem
from tests.embedded.conftest import free_ports

CERTIFICATES = Certificates(
    Path("/run/authority.pem"), Path("/run/front-door.pem"), Path("/run/front-door.key")
)

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def without_web(instance: Instance) -> Iterator[Instance]:
    """Traefik with the configuration of an instance whose web process does not run, and the page."""
    try:
        traefik = find_binaries().traefik
    except Problem:
        pytest.skip("no Traefik on this machine")
    instance = replace(instance, outage_port=free_ports(1)[0])
    instance.run_dir.mkdir(parents=True)
    secrets = dict.fromkeys(("redis_control", "redis_node", "gateway_secret"), "s")
    configs.write(instance, {**secrets, "control_key": "c0" * 32, "node_key": "a0" * 32})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(outage.serve(instance.outage_port), loop).result(5)
    with subprocess.Popen([str(traefik), f"--configFile={instance.run_dir / 'traefik.yml'}"]) as process:
        yield instance
        process.terminate()
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def answered(instance: Instance, path: str, headers: dict[str, str]) -> httpx.Response:
    deadline = time.monotonic() + 15
    while True:
        try:
            found = httpx.get(f"http://127.0.0.1:{instance.port}{path}", headers=headers)
        except httpx.ConnectError:
            found = None
        if found is not None and found.status_code == 502:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_browser_gets_our_page_which_tries_again_by_itself(without_web: Instance) -> None:
    page = answered(without_web, "/workspaces/new/?flavor=gpu-1", BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Berth is starting" in page.text
    assert "What runs goes on, and nothing is lost." in page.text
    assert page.text.count("<a ") == 1, "one next action"
    assert '<meta http-equiv="refresh" content="5">' in page.text
    assert "Bad Gateway" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]


def test_a_program_gets_a_problem_document(without_web: Instance) -> None:
    problem = answered(without_web, "/api/v1/workspaces", {"Accept": "application/json"})
    assert problem.headers["content-type"] == "application/problem+json"
    assert problem.json()["status"] == 502
    assert problem.headers["retry-after"] == "5"


def test_the_style_of_the_page_is_the_one_that_its_policy_names() -> None:
    head, _, page = (
        outage.answer("GET / HTTP/1.1\r\nAccept: text/html\r\n\r\n").decode().partition("\r\n\r\n")
    )
    named = re.search(r"sha256-(\S+?)'", head)
    style = re.search(r"<style>(.*)</style>", page, re.S)
    assert named and style
    assert base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode() == named[1]
    assert f"Content-Length: {len(page.encode())}" in head
    assert outage.answer("HEAD / HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


def test_every_router_to_the_portal_has_the_page(instance: Instance) -> None:
    routes = json.loads(
        configs.traefik_routes(
            domain="localhost",
            web_url=instance.web_url,
            gateway_url=instance.gateway_url,
            outage_url=instance.outage_url,
            gateway_secret="s",
            certificates=CERTIFICATES,
        )
    )["http"]
    assert routes["middlewares"]["portal-outage"]["errors"]["service"] == "outage"
    assert routes["services"]["outage"]["loadBalancer"]["servers"] == [{"url": instance.outage_url}]
    for name in ("portal", "portal-streams", "ws-gateway", "ws-fallback"):
        assert routes["routers"][name]["middlewares"][0] == "portal-outage"
