"""Idempotency keys: replays, scope, expiry, and operations that ignore them."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from portal.common import encrypted_fields
from portal.common.models import IdempotencyRecord
from portal.people.accounts.models import ApiToken, Team
from portal.quota.ledger import services as ledger
from portal.quota.ledger.models import LedgerAccount
from portal.workspaces import housekeeping
from tests.api.conftest import Api, problem
from tests.factories import make_token

pytestmark = pytest.mark.django_db

KEY = {"Idempotency-Key": "pipeline-7"}
REPLAYED = "Idempotent-Replayed"
IGNORED = "Idempotency-Key-Ignored"
CREDIT = {"amount": 3_600_000, "note": "for the deadline"}
CREDITS = "ledgers/vision/credits"


@pytest.fixture
def opened(team: Team, olga: Any) -> None:
    ledger.set_ledger(actor=olga, team=team, quota=10**9)


def test_credit_is_granted_once(api: Any, olga: Any, opened: None) -> None:
    operator = api(olga)
    first = operator.post(CREDITS, CREDIT, **KEY)
    again = operator.post(f"{CREDITS}/", CREDIT, **KEY)
    assert (first.status_code, REPLAYED in first) == (200, False)
    assert (again.status_code, again[REPLAYED], again.json()) == (200, "true", first.json())
    assert LedgerAccount.objects.get().credit == 3_600_000
    assert operator.post(CREDITS, CREDIT).json()["credit"] == 7_200_000
    assert operator.post(CREDITS, CREDIT, **{"Idempotency-Key": "other"}).json()["credit"] == 10_800_000


def test_another_request_with_the_key_is_refused(api: Any, olga: Any, opened: None) -> None:
    operator = api(olga)
    operator.post(CREDITS, CREDIT, **KEY)
    problem(operator.post(CREDITS, {"amount": 1}, **KEY), 409, "idempotency_key_reused")
    assert LedgerAccount.objects.get().credit == 3_600_000


def test_key_is_scoped_to_user_and_path(api: Any, olga: Any, petra: Any, opened: None) -> None:
    assert api(olga).post(CREDITS, CREDIT, **KEY).json()["credit"] == 3_600_000
    assert api(petra).post(CREDITS, CREDIT, **KEY).json()["credit"] == 7_200_000
    assert api(olga).post("teams", {"name": "Speech", "slug": "speech"}, **KEY).status_code == 201


def test_refusals_are_not_stored(api: Any, olga: Any, team: Team) -> None:
    operator = api(olga)
    problem(operator.post(CREDITS, CREDIT, **KEY), 404, "not_found")
    ledger.set_ledger(actor=olga, team=team, quota=10**9)
    assert operator.post(CREDITS, CREDIT, **KEY).json()["credit"] == 3_600_000


def test_failure_midway_leaves_no_work_and_no_answer(
    api: Any, olga: Any, opened: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> str:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("portal.common.idempotency.encrypt", killed)
        with pytest.raises(SystemExit):
            api(olga).post(CREDITS, CREDIT, **KEY)
    assert LedgerAccount.objects.get().credit == 0
    assert not IdempotencyRecord.objects.exists()
    assert api(olga).post(CREDITS, CREDIT, **KEY).json()["credit"] == 3_600_000


def test_replay_repeats_the_location_header(api: Any, ada: Any) -> None:
    body = {"username": "nora", "email": "nora@example.org"}
    first, again = (api(ada).post("users", body, **KEY) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.get("Location") == first.get("Location")


def test_replay_shows_a_secret_again_and_stores_it_encrypted(api: Any, bob: Any) -> None:
    body = {"name": "ci", "scopes": ["workspaces:read"]}
    program = api(bob, "tokens:write", "workspaces:read")
    first, again = (program.post("tokens", body, **KEY) for _ in range(2))
    assert first.status_code == 201, first.content
    secret = first.json()["secret"]
    assert again.json()["secret"] == secret
    assert ApiToken.objects.filter(owner=bob, name="ci").count() == 1
    kept = IdempotencyRecord.objects.get()
    assert secret not in kept.sealed
    assert "ci" not in kept.sealed.split()
    (column,) = [each for each in encrypted_fields.COLUMNS if each.model is IdempotencyRecord]
    assert encrypted_fields.reencrypt(column) == (1, 0)


def test_undecryptable_value_is_refused(api: Any, olga: Any, opened: None) -> None:
    api(olga).post(CREDITS, CREDIT, **KEY)
    IdempotencyRecord.objects.update(sealed="of another secret key")
    problem(api(olga).post(CREDITS, CREDIT, **KEY), 409, "idempotency_key_reused")


def test_stored_responses_expire_after_a_day(api: Any, olga: Any, opened: None) -> None:
    api(olga).post(CREDITS, CREDIT, **KEY)
    housekeeping.clean_up()
    assert IdempotencyRecord.objects.exists()
    IdempotencyRecord.objects.update(created_at=timezone.now() - timedelta(hours=25))
    housekeeping.clean_up()
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "teams"),
        ("PUT", "ledgers/vision"),
        ("PATCH", "flavors/cpu-small"),
        ("DELETE", "ledgers/vision"),
        ("POST", "nodes/00000000-0000-0000-0000-000000000000/cordon"),
        ("POST", "admission/preview"),
    ],
)
@pytest.mark.parametrize("key", ["k-1", "two words"])
def test_key_is_ignored_where_it_has_no_effect(
    api: Any, olga: Any, team: Team, method: str, path: str, key: str
) -> None:
    plain = api(olga).send(method, path, {})
    answer = api(olga).send(method, path, {}, **{"Idempotency-Key": key})
    assert answer.status_code == plain.status_code
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("key", ["two words", "x" * 121, "x" * 4000, "naïve", '"8e03978e-40d5"', "\t|x|"])
def test_any_text_is_a_valid_key(api: Any, olga: Any, opened: None, key: str) -> None:
    first, again = (api(olga).post(CREDITS, CREDIT, **{"Idempotency-Key": key}) for _ in range(2))
    assert (first.status_code, again.status_code, again[REPLAYED]) == (200, 200, "true")
    assert IGNORED not in first
    other = api(olga).post(CREDITS, CREDIT, **{"Idempotency-Key": f"{key}."})
    assert (other.status_code, REPLAYED in other) == (200, False)
    problem(api(olga).post(CREDITS, {"amount": 1}, **{"Idempotency-Key": key}), 409, "idempotency_key_reused")
    assert LedgerAccount.objects.get().credit == 2 * 3_600_000


@pytest.mark.parametrize("key", ["", "  "])
def test_empty_key_is_ignored_and_reported(api: Any, olga: Any, opened: None, key: str) -> None:
    for number in (1, 2):
        answer = api(olga).post(CREDITS, CREDIT, **{"Idempotency-Key": key})
        assert (answer.status_code, answer[IGNORED]) == (200, "empty")
        assert answer.json()["credit"] == number * 3_600_000
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_requests_at_the_same_moment_take_effect_once(olga: Any, opened: None) -> None:
    _, secret = make_token(olga)
    together = threading.Barrier(5)
    answers: list[Any] = []

    def ask() -> None:
        client = Api(Client(headers={"Authorization": f"Bearer {secret}"}))
        together.wait(20)
        try:
            answers.append(client.post(CREDITS, CREDIT, **KEY))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200] * 5, [a.content for a in answers]
    assert sum(REPLAYED not in answer for answer in answers) == 1
    assert LedgerAccount.objects.get().credit == 3_600_000
