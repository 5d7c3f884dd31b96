"""SQLite, with commit callbacks in tests."""

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3.operations import DatabaseOperations

from tests.databases.commits import CommitsInTests
from tests.databases.emptying import KeepsWhatMigrateMade


class Operations(KeepsWhatMigrateMade, DatabaseOperations):
    """Keeps what `migrate` has created."""


class DatabaseWrapper(CommitsInTests, base.DatabaseWrapper):
    """Runs callbacks when the commit would happen."""

    ops_class = Operations
