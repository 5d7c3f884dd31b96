"""Attack: a full database disk, so that reading fails or the problem stays unnoticed."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection
from django.test import Client
from django.utils import timezone

from portal.common import storage
from portal.common.events.models import Event
from portal.common.reasons.codes import CommonCode
from portal.embedded import health
from portal.people.accounts import last_seen
from portal.people.accounts.models import ApiToken, FailureWindow, UserSession
from portal.workspaces.lifecycle import State
from tests.factories import PASSWORD, WorkspaceFactory, make_token

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]
KINDS = ("full", "read-only")


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    if request.param == "full" and connection.vendor != "sqlite":
        pytest.skip("only SQLite's size can be bounded from within")
    return str(request.param)


@contextmanager
def unwritable(kind: str) -> Iterator[None]:
    """No write to the database succeeds in this block."""
    if kind == "full":
        with connection.cursor() as cursor:
            pages = cursor.execute("PRAGMA page_count").fetchone()[0]
            cursor.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DatabaseError):
            # Free pages within the file.
            for number in range(100_000):
                FailureWindow.objects.create(key=f"{number:0100}", began_at=timezone.now(), count=1)
        limit = "PRAGMA max_page_count = 1073741823"
    elif connection.vendor == "sqlite":
        execute("PRAGMA query_only = ON")
        limit = "PRAGMA query_only = OFF"
    else:
        execute("SET default_transaction_read_only = on")
        limit = "SET default_transaction_read_only = off"
    try:
        yield
    finally:
        execute(limit)


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def cleared_health_cache(monkeypatch) -> None:
    """Clear remembered results of earlier health writes."""
    monkeypatch.setattr(last_seen, "_last_recorded", type(last_seen._last_recorded)())
    monkeypatch.setattr(health, "_written", (float("-inf"), ""))


def quiet(**headers: str) -> Client:
    return Client(raise_request_exception=False, headers=headers)


def test_signed_in_users_can_read_on_a_full_disk(kind, cleared_health_cache, alice, team, as_user):
    workspace = WorkspaceFactory(owner=alice, team=team, state=State.STOPPED)
    browser = quiet()
    assert browser.post("/sign-in/", {"username": "alice", "password": PASSWORD}).status_code == 302
    UserSession.objects.update(last_seen_at=timezone.now() - timedelta(hours=1))
    program = quiet(Authorization=f"Bearer {make_token(alice)[1]}")
    ApiToken.objects.update(last_used_at=None)
    with unwritable(kind):
        for path in ("/", f"/workspaces/{workspace.pk}/", "/teams/", "/account/"):
            last_seen._last_recorded.clear()
            assert browser.get(path).status_code == 200, path
        assert program.get("/api/v1/workspaces").status_code == 200
        assert program.get("/api/v1/me").status_code == 200


def test_full_database_is_distinguished_from_other_errors():
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite's size can be bounded from within")
    with unwritable("full"), pytest.raises(DatabaseError) as refused:
        FailureWindow.objects.create(key="x" * 120, began_at=timezone.now(), count=1)
        for number in range(100_000):
            FailureWindow.objects.create(key=f"more {number:090}", began_at=timezone.now(), count=1)
    assert storage.write_problem(refused.value) is CommonCode.STORAGE_FULL
    with pytest.raises(DatabaseError) as wrong:
        execute("SELECT nothing FROM nowhere")
    assert storage.write_problem(wrong.value) is None


def test_writes_are_refused_with_the_reason(cleared_health_cache, alice, team):
    workspace = WorkspaceFactory(owner=alice, team=team, state=State.PENDING)
    program = quiet(Authorization=f"Bearer {make_token(alice)[1]}")
    before = Event.objects.count()
    with unwritable("read-only"):
        answered = program.post(f"/api/v1/workspaces/{workspace.pk}/stop")
        assert answered.status_code == 503
        assert answered["Content-Type"] == "application/problem+json"
        assert answered.json()["reason"]["code"] == "storage_read_only"
        page = quiet().post("/sign-in/", {"username": "alice", "password": PASSWORD})
        assert page.status_code == 503
        assert "nothing was changed" in page.content.decode()
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING
    assert Event.objects.count() == before
    # With free space everything continues.
    FailureWindow.objects.all().delete()
    assert program.post(f"/api/v1/workspaces/{workspace.pk}/stop").status_code in {200, 202}
    assert quiet().post("/sign-in/", {"username": "alice", "password": PASSWORD}).status_code == 302


def database_of(answered) -> dict[str, object]:
    return next(part for part in answered.json()["parts"] if part["name"] == "database")


def test_health_reports_an_unwritable_database(cleared_health_cache):
    assert database_of(quiet().get("/healthz"))["ok"] is True
    with unwritable("read-only"):
        health._written = (float("-inf"), "")
        answered = quiet().get("/healthz")
        assert answered.status_code == 503
        found = database_of(answered)
        assert found["ok"] is False
        assert "is read-only" in str(found["detail"])
    health._written = (float("-inf"), "")
    assert database_of(quiet().get("/healthz"))["ok"] is True


def test_many_health_requests_make_one_write(cleared_health_cache, monkeypatch):
    tried = []
    monkeypatch.setattr(health, "WRITE_EVERY_S", 600.0)  # however slow this machine is
    monkeypatch.setattr(health, "_try_to_write", lambda: tried.append(1) or "")
    for _ in range(50):
        quiet().get("/healthz")
    assert len(tried) == 1


def test_locked_database_is_reported(cleared_health_cache, monkeypatch):
    monkeypatch.setattr(health, "WRITE_WITHIN_MS", 50)
    with locked():
        answered = quiet().get("/healthz")
        assert answered.status_code == 503
        found = database_of(answered)
        assert found["ok"] is False
        assert "a write took longer than" in str(found["detail"])
        assert "lock" in str(found["fix"])
        # Only checks that the process answers.
        assert quiet().get("/healthz/live").status_code == 200
    health._written = (float("-inf"), "")
    assert database_of(quiet().get("/healthz"))["ok"] is True


@contextmanager
def locked() -> Iterator[None]:
    """Another program holds a write transaction."""
    quiet().get("/healthz")  # the locked row of PostgreSQL
    health._written = (float("-inf"), "")
    if connection.vendor == "sqlite":
        other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
    else:
        other = connection.copy()
        other.set_autocommit(False)
        other.cursor().execute(f"LOCK TABLE {FailureWindow._meta.db_table} IN EXCLUSIVE MODE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT])
def test_exhausted_disk_quota_is_reported_despite_free_space(cleared_health_cache, monkeypatch, fault):
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has its own disk")

    def refuse(*_: object) -> None:
        raise OSError(fault, "no room")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    answered = quiet().get("/healthz")
    assert answered.status_code == 503
    assert "its disk is full" in str(database_of(answered)["detail"])


def test_liveness_makes_no_calls(monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(health, "check", lambda: pytest.fail("not cheap"))
    with django_assert_num_queries(0):
        assert quiet().get("/healthz/live").status_code == 200
