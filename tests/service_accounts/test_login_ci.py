"""berth login --ci: exchange of a job token for one of a service account."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal.cli import ci, renewal
from portal.cli.client.tokens import Tokens
from portal.cli.errors import Unreachable
from portal.people.accounts.models import ApiToken
from portal.workspaces.models import Workspace
from tests.workspaces.gateway.gateway_support import eventually

UP = ("up", "--template", "jupyterlab", "--flavor", "sim-cpu", "--name", "job")


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BERTH_ID_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_login_uses_the_gitlab_id_token(
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


def test_login_requests_the_github_id_token(
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


def test_login_refusal_is_printed(
    berth: Any,
    server: str,
    issuer: Any,
    rule: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTH_ID_TOKEN", issuer.sign(issuer.claims(ref="refs/tags/v1")))
    ran = berth("login", server, "--ci")
    assert ran.code == 3 and "No rule accepts this token" in ran.err


def test_login_outside_a_job_is_refused(berth: Any, server: str, db: None) -> None:
    ran = berth("login", server, "--ci")
    assert ran.code == 3 and "id-token: write" in ran.err


def test_lost_response_is_requested_again(
    server: str, issuer: Any, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ci, "RETRY_S", 0.01)
    network, lost = httpx.HTTPTransport(), []

    def lose_the_first(request: httpx.Request) -> httpx.Response:
        answer = network.handle_request(request)
        answer.read()
        if not lost:
            lost.append(answer)
            raise httpx.ReadError("The connection was reset.")
        return answer

    environ = {"BERTH_ID_TOKEN": issuer.sign()}
    job = ci.token(server, environ, transport=httpx.MockTransport(lose_the_first))
    network.close()
    assert lost[0].json()["access_token"] != job.token
    headers = {"Authorization": f"Bearer {job.token}"}
    assert httpx.get(f"{server}/api/v1/me", headers=headers).json()["username"] == "svc-ci"
    assert ApiToken.objects.count() == 1


def test_a_job_of_gitlab_signs_in_again_with_its_id_token(
    berth: Any, server: str, issuer: Any, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_ID_TOKEN", issuer.sign())
    assert berth("login", server, "--ci").code == 0
    expire()
    assert berth("login", server, "--ci").code == 0
    assert berth("ls").code == 0
    assert ApiToken.objects.count() == 1


def expire() -> None:
    token = ApiToken.objects.get()
    ApiToken.objects.update(expires_at=token.created_at)


def test_expired_token_is_reported(signed_in: Any, server: str) -> None:
    expire()
    ran = signed_in("ls")
    assert ran.code == 3
    assert ran.err == (
        "berth: The token of this CI job has expired. Exchange the job's ID token again.\n"
        f"  → Run `berth login {server} --ci` in the job.\n"
    )


@pytest.fixture
def signed_in(berth: Any, server: str, issuer: Any, rule: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BERTH_ID_TOKEN", issuer.sign())
    assert berth("login", server, "--ci").code == 0
    return berth


def test_each_command_renews_the_token(signed_in: Any) -> None:
    before = ApiToken.objects.get()
    assert signed_in("ls").code == 0
    assert ApiToken.objects.get().expires_at > before.expires_at


def test_a_long_command_renews_it_at_half_of_its_lifetime(
    signed_in: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads(Path(f"{Path.home()}/.config/berth/config.json").read_text())
    pauses: list[float] = []
    third = threading.Event()
    answers: Any = iter([{"expires_in": 600}, Unreachable("The portal restarts."), {"expires_in": 60}])

    def renew(_: Tokens) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(_: threading.Event, pause_s: float) -> bool:
        pauses.append(pause_s)
        if len(pauses) == 3:
            third.set()
        return len(pauses) == 3

    monkeypatch.setattr(Tokens, "renew", renew)
    monkeypatch.setattr(renewal, "_has_ended", wait)
    with renewal.renewing(server, config["token"]):
        assert third.wait(20)
    assert pauses == [300, renewal.RETRY_S, 30]


def test_other_tokens_are_not_renewed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokens, "renew", None)
    with renewal.renewing(server, "berth_x"):
        pass


def test_deleted_rule_is_reported(signed_in: Any, rule: Any) -> None:
    rule.delete()
    ran = signed_in("ls")
    assert ran.code == 0
    assert ran.err.startswith("Token not renewed: The trust rule of this token was deleted.\n")


@pytest.mark.parametrize(("option", "bound"), [((), True), (("--keep",), False), (("--reuse",), False)])
def test_workspaces_of_the_job_are_bound(signed_in: Any, pool: Any, option: Any, bound: bool) -> None:
    assert signed_in(*UP, *option).code == 0
    assert eventually(Workspace.objects.first).bound is bound
