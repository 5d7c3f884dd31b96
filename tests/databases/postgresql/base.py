"""PostgreSQL, with commit callbacks in tests."""

from __future__ import annotations

import sys

from django.db.backends.postgresql import base
from django.db.backends.postgresql.creation import DatabaseCreation
from django.db.backends.postgresql.operations import DatabaseOperations

from tests.databases.commits import CommitsInTests
from tests.databases.emptying import DeletesFromFilledTables


class Creation(DatabaseCreation):
    """Reports who still uses the database at the end, and drops it anyway."""

    def _destroy_test_db(self, test_database_name: str, verbosity: int) -> None:
        with self._nodb_cursor() as cursor:
            cursor.execute(
                "SELECT state, query FROM pg_stat_activity WHERE datname = %s", [test_database_name]
            )
            for state, query in cursor.fetchall():
                print(f"a connection to {test_database_name} was left, {state}: {query}", file=sys.stderr)
            cursor.execute(f"DROP DATABASE {self.connection.ops.quote_name(test_database_name)} WITH (FORCE)")


class Operations(DeletesFromFilledTables, DatabaseOperations):
    """Empties a database faster."""


class DatabaseWrapper(CommitsInTests, base.DatabaseWrapper):
    """Runs callbacks when the commit would happen."""

    creation_class = Creation
    ops_class = Operations
