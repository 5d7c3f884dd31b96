"""Sign-in with a third-party provider: oidc-provider-mock, in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.test import Client

from portal.people.accounts.models import User
from tests.identity.conftest import answers, free_port, wait_for

pytestmark = [pytest.mark.django_db, pytest.mark.engine]


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    port = free_port()
    argv = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(
                lambda: answers(f"http://127.0.0.1:{port}/.well-known/openid-configuration"),
                process,
                "the mock",
            )
            yield str(httpx.get(f"http://127.0.0.1:{port}/.well-known/openid-configuration").json()["issuer"])
        finally:
            process.kill()


def sign_in(browser: Client, claims: dict[str, Any], issuer: str) -> Any:
    """Sign in as `claims["sub"]`, who clicks at the provider."""
    more = {name: value for name, value in claims.items() if name != "sub"}
    httpx.put(f"{issuer}/users/{claims['sub']}", json=more, timeout=30).raise_for_status()
    away = browser.get("/sign-in/by/corp/")["Location"]
    approved = httpx.post(away, data={"sub": claims["sub"]}, timeout=30)
    back = urlsplit(approved.headers["Location"])
    return browser.get(f"{back.path}?{back.query}")


def test_sign_in_group_change_and_sign_out(mock, configure, monkeypatch, client, team):
    monkeypatch.setenv("CORP_SECRET", "anything")
    issuer = mock.rstrip("/")
    configure(f"""
[[provider]]
kind = "oidc"
id = "corp"
name = "Example Corp"
issuer = "{issuer}"
client_id = "berth"
client_secret = "env:CORP_SECRET"
sign_out_everywhere = true

[[provider.rules]]
group = "vision"
team = "vision"
""")
    nora = {"sub": "nora-1", "preferred_username": "nora", "groups": ["vision"]}
    assert sign_in(client, nora, issuer)["Location"] == "/"
    user = User.objects.get(username="nora")
    assert user.memberships.filter(team=team).exists()
    left = client.get(client.post("/sign-out/")["Location"]).content.decode()
    assert f"{issuer}/oauth2/end_session?id_token_hint=" in left
    sign_in(client, {**nora, "groups": []}, issuer)
    assert not user.memberships.exists()
