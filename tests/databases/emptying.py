"""Faster emptying of the database after a test that commits.

Django truncates every table and recreates content types and permissions, which takes up to 1 s on PostgreSQL
although nearly all tables are empty. The portal uses neither, so both are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.commands import flush

KEPT = {"django_content_type", "auth_permission"}
"""Tables whose rows `migrate` has created."""


def keep_what_migrate_made() -> None:
    """Skip `post_migrate`, whose receivers would recreate kept rows."""
    flush.emit_post_migrate_signal = lambda *_, **__: None


class KeepsWhatMigrateMade:
    """Goes before Django's `DatabaseOperations`."""

    def sql_flush(self, style: Any, tables: Sequence[str], **options: Any) -> list[str]:
        statements: list[str] = super().sql_flush(  # type: ignore[misc]
            style, [table for table in tables if table not in KEPT], **options
        )
        return statements


class DeletesFromFilledTables(KeepsWhatMigrateMade):
    """On PostgreSQL: deletes from non-empty tables, with foreign keys disabled."""

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
