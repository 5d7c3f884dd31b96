"""PostgreSQL, with commits in tests."""

from django.db.backends.postgresql import base

from tests.databases.commits import CommitsInTests


class DatabaseWrapper(CommitsInTests, base.DatabaseWrapper):
    """Django's, which runs callbacks when the commit would be."""
