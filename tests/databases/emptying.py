"""How the database is emptied after a test that commits.

Django truncates every table, and then creates its content types and permissions again: up to a second on
PostgreSQL for tables of which nearly all are empty. The portal uses neither of the two, so they stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.commands import flush

KEPT = {"django_content_type", "auth_permission"}
"""What `migrate` has put there."""


def keep_what_migrate_made() -> None:
    """Do not send `post_migrate` when the database is emptied: its receivers would make what is kept."""
    flush.emit_post_migrate_signal = lambda *_, **__: None


class KeepsWhatMigrateMade:
    """Goes before Django's `DatabaseOperations`."""

    def sql_flush(self, style: Any, tables: Sequence[str], **options: Any) -> list[str]:
        statements: list[str] = super().sql_flush(  # type: ignore[misc]
            style, [table for table in tables if table not in KEPT], **options
        )
        return statements


class DeletesFromFilledTables(KeepsWhatMigrateMade):
    """On PostgreSQL: deletes from the tables that have rows, with foreign keys off meanwhile."""

    def sql_flush(
        self, style: Any, tables: Sequence[str], *, reset_sequences: bool = False, **_: Any
    ) -> list[str]:
        if reset_sequences:
            return super().sql_flush(style, tables, reset_sequences=True, allow_cascade=True)
        names = [self.quote_name(table) for table in tables if table not in KEPT]  # type: ignore[attr-defined]
        deletions = "".join(
            f"IF EXISTS (SELECT 1 FROM {name} LIMIT 1) THEN DELETE FROM {name}; END IF;" for name in names
        )
        return ["SET session_replication_role = replica", f"DO $$ BEGIN {deletions} END $$",
                "SET session_replication_role = DEFAULT"]  # fmt: skip
