"""A new database is made at once, and is as the migrations would have made it, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

from portal.common import new_database

pytestmark = pytest.mark.sqlite


@contextmanager
def empty_database(alias: str, folder: Any) -> Iterator[BaseDatabaseWrapper]:
    """A database of its own on the server of these tests, with nothing in it."""
    its = connection.settings_dict | {"NAME": str(folder / alias)}
    if connection.vendor == "postgresql":
        its["NAME"] = f"{connection.settings_dict['NAME']}_{alias}"
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{its["NAME"]}"')
            cursor.execute(f'CREATE DATABASE "{its["NAME"]}"')
    connections.databases[alias] = its
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.databases[alias]
        if connection.vendor == "postgresql":
            with connection._nodb_cursor() as cursor:
                cursor.execute(f'DROP DATABASE "{its["NAME"]}" WITH (FORCE)')


def described(its: BaseDatabaseWrapper) -> dict[str, Any]:
    """Columns, constraints and indexes of all tables, without names that a renamed table leaves behind."""
    found: dict[str, Any] = {}
    with its.cursor() as cursor:
        for table in sorted(its.introspection.table_names(cursor)):
            columns = {
                column.name: (
                    column.type_code,
                    column.display_size,
                    column.internal_size,
                    column.null_ok,
                    column.default,
                )
                for column in its.introspection.get_table_description(cursor, table)
            }
            constraints = its.introspection.get_constraints(cursor, table).values()
            found[table] = columns, sorted(repr(sorted(each.items(), key=str)) for each in constraints)
    return found


def rows(its: BaseDatabaseWrapper) -> dict[str, int]:
    """How many rows each table has."""
    with its.cursor() as cursor:
        counts = {}
        for table in its.introspection.table_names(cursor):
            cursor.execute(f"SELECT count(*) FROM {its.ops.quote_name(table)}")
            counts[table] = cursor.fetchone()[0]
    return counts


@pytest.fixture
def unblocked(django_db_setup, django_db_blocker) -> Iterator[None]:
    """Databases may be used, others than that of the tests, too."""
    with django_db_blocker.unblock():
        yield


class ToTheOld:
    """What migrations do to rows, they do where no database is named."""

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return "in_steps"

    db_for_write = db_for_read


@pytest.mark.thorough("runs every migration; `make test` makes its databases by the same code")
def test_it_is_as_the_migrations_make_it(unblocked, tmp_path, monkeypatch):
    with empty_database("at_once", tmp_path) as new, empty_database("in_steps", tmp_path) as old:
        out = StringIO()
        call_command("migrate", database="at_once", interactive=False, stdout=out)
        assert "were made in an empty database" in out.getvalue()
        monkeypatch.setattr(router, "routers", [ToTheOld()])
        call_command("migrate", database="in_steps", interactive=False, verbosity=0, step_by_step=True)
        assert described(new) == described(old)
        assert set(MigrationRecorder(new).applied_migrations()) == set(
            MigrationRecorder(old).applied_migrations()
        )
        assert rows(new) == rows(old)


def test_a_database_with_a_table_is_migrated_as_ever(unblocked, tmp_path):
    with empty_database("begun", tmp_path) as begun:
        with begun.cursor() as cursor:
            cursor.execute("CREATE TABLE something (id integer)")
        assert new_database.make(begun) == 0
        assert begun.introspection.table_names() == ["something"]


def test_what_was_cut_off_is_begun_anew(unblocked, tmp_path, monkeypatch):
    with empty_database("cut_off", tmp_path) as cut_off:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(MigrationRecorder, "record_applied", _interrupted)
            new_database.make(cut_off)
        assert set(cut_off.introspection.table_names()) <= {"django_migrations"}
        assert new_database.make(cut_off) > 100
        assert new_database.make(cut_off) == 0


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt
