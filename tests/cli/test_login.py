"""berth login: address and token selection."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.factories import make_token


def stored(tmp_path: Path) -> Path:
    return tmp_path / ".config" / "berth" / "config.json"


def test_token_file_is_private(berth: Any, server: str, bob: Any, tmp_path: Path) -> None:
    _, secret = make_token(bob)

    ran = berth("login", server, "--token", secret)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"Signed in at {server} as bob.\n"
    assert json.loads(stored(tmp_path).read_text()) == {"url": server, "token": secret}
    assert stored(tmp_path).stat().st_mode & 0o777 == 0o600
    assert berth("ls").code == 0


def test_token_is_read_from_standard_input(
    berth: Any, server: str, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(make_token(bob)[1] + "\n"))

    ran = berth("login", server, "--json")

    assert (ran.code, ran.json["username"]) == (0, "bob")


@pytest.mark.parametrize("token", ["berth_wrong", "two words", "", "bärth"])
def test_invalid_token_is_not_stored(
    berth: Any, server: str, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(token + "\n"))

    ran = berth("login", server)

    assert ran.code == 3
    assert "→" in ran.err
    assert not stored(tmp_path).exists()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:y", "http://x/?a=b"])
def test_invalid_addresses_are_refused(berth: Any, url: str) -> None:
    ran = berth("login", url, "--token", "berth_x")
    assert (ran.code, "not the address of a portal" in ran.err) == (2, True)


def test_missing_token_is_reported(berth: Any) -> None:
    ran = berth("ls")
    assert (ran.code, "berth login" in ran.err) == (3, True)


def test_stored_token_is_never_sent_to_another_portal(
    berth: Any, server: str, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    berth("login", server, "--token", make_token(bob)[1])
    monkeypatch.setenv("BERTH_URL", "http://other.example")

    assert berth("ls").code == 3

    monkeypatch.setenv("BERTH_URL", server + "/")
    assert berth("ls").code == 0


def test_invalid_credentials_file_is_reported(berth: Any, tmp_path: Path) -> None:
    stored(tmp_path).parent.mkdir(parents=True)
    stored(tmp_path).write_text("{")
    ran = berth("ls")
    assert (ran.code, "config.json" in ran.err) == (1, True)


def test_unreachable_portal_is_reported(berth: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("BERTH_TOKEN", "berth_x")

    ran = berth("ls", "--json")

    assert ran.code == 4
    assert "does not answer" in ran.json["error"]["message"]
