"""berth login --ci: the token of a job for one of a service account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BERTH_ID_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_the_token_that_gitlab_put_into_the_job(
    berth: Any,
    server: str,
    issuer: Any,
    rule: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("BERTH_ID_TOKEN", issuer.sign())
    ran = berth("login", server, "--ci")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"Signed in at {server} as svc-ci.\n"
    kept = json.loads((tmp_path / ".config" / "berth" / "config.json").read_text())
    assert kept["token"].startswith("berth_")
    assert berth("ls").code == 0


def test_the_token_that_github_gives_when_asked(
    berth: Any,
    server: str,
    issuer: Any,
    rule: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer.pages["/id?v=1&audience=https%3A%2F%2Fberth.example.org"] = {"value": issuer.sign()}
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{issuer.url}/id?v=1")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "secret")
    ran = berth("login", server, "--ci", "--audience", "https://berth.example.org", "--json")
    assert (ran.code, ran.json["username"]) == (0, "svc-ci"), ran.err


def test_a_refusal_is_said(
    berth: Any,
    server: str,
    issuer: Any,
    rule: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTH_ID_TOKEN", issuer.sign(issuer.claims(ref="refs/tags/v1")))
    ran = berth("login", server, "--ci")
    assert ran.code == 3 and "No rule accepts this token" in ran.err


def test_outside_of_a_job(berth: Any, server: str, db: None) -> None:
    ran = berth("login", server, "--ci")
    assert ran.code == 3 and "id-token: write" in ran.err
