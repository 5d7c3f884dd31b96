"""Fixtures for sign-in providers: an OpenID Connect provider that can be made to lie."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.test import Client

from tests.api.conftest import api as api
from tests.identity.op import CLIENT, SECRET
from tests.ports import free_port as free_port

START_S = 60


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    """Wait until `ready`, at most a minute."""
    until = time.monotonic() + START_S
    while not ready():
        assert process.poll() is None, f"{what} has ended"
        assert time.monotonic() < until, f"{what} does not answer"
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


class Op:
    """Client of the provider's control interface."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def tell(self, **values: Any) -> dict[str, Any]:
        """Set the `claims`, and the `lies` until the next call."""
        answer = httpx.post(f"{self.issuer}/control", json=values, timeout=30)
        answer.raise_for_status()
        state: dict[str, Any] = answer.json()
        return state

    def approve(self, url: str) -> str:
        """Follow a browser that was sent to the provider; return the path of its way back."""
        answer = httpx.get(url, timeout=30)
        assert answer.status_code == 302, answer.text
        back = urlsplit(answer.headers["Location"])
        return f"{back.path}?{back.query}"

    def sign_in(self, browser: Client, **claims: Any) -> Any:
        """A whole round trip in `browser`; return the last response."""
        if claims:
            self.tell(claims=claims)
        away = browser.get("/sign-in/by/corp/")
        assert away.status_code == 302, away.content
        return browser.get(self.approve(away["Location"]))


@pytest.fixture(scope="module")
def op_process() -> Iterator[Op]:
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", "tests.identity.op", str(port)]) as process:
        issuer = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: answers(f"{issuer}/.well-known/openid-configuration"), process, "the provider")
            yield Op(issuer)
        finally:
            process.kill()


@pytest.fixture
def op(op_process: Op, configure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Op:
    """An honest provider, configured as corp."""
    monkeypatch.setenv("CORP_SECRET", SECRET)
    op_process.tell(reset=True)
    configure(op_settings(op_process))
    return op_process


def op_settings(op: Op, more: str = "", rules: str = "") -> str:
    return f"""
[[provider]]
kind = "oidc"
id = "corp"
name = "Example Corp"
issuer = "{op.issuer}"
client_id = "{CLIENT}"
client_secret = "env:CORP_SECRET"
{more}
{rules}
"""
