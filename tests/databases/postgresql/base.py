"""PostgreSQL, with commits in tests."""

from __future__ import annotations

from django.db.backends.postgresql import base
from django.db.backends.postgresql.creation import DatabaseCreation

from tests.databases.commits import CommitsInTests


class Creation(DatabaseCreation):
    """Django's, which drops the database also where a thread of a test is about to close its connection."""

    def _destroy_test_db(self, test_database_name: str, verbosity: int) -> None:
        with self._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {self.connection.ops.quote_name(test_database_name)} WITH (FORCE)")


class DatabaseWrapper(CommitsInTests, base.DatabaseWrapper):
    """Django's, which runs callbacks when the commit would be."""

    creation_class = Creation
