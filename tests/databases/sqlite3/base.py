"""SQLite, with commits in tests."""

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3.operations import DatabaseOperations

from tests.databases.commits import CommitsInTests
from tests.databases.emptying import KeepsWhatMigrateMade


class Operations(KeepsWhatMigrateMade, DatabaseOperations):
    """Django's, which keeps what `migrate` has made."""


class DatabaseWrapper(CommitsInTests, base.DatabaseWrapper):
    """Django's, which runs callbacks when the commit would be."""

    ops_class = Operations
