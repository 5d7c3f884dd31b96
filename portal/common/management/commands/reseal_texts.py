"""`manage.py reseal_texts`: re-encrypt all encrypted fields with the current secret key."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.common import encrypted_fields


class Command(BaseCommand):
    help = (
        "Writes secrets, webhooks' secrets and channels' addresses under BERTH_SECRET_KEY, "
        "so that BERTH_SECRET_KEY_FALLBACKS need not have the key from before."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        lost = 0
        for column in encrypted_fields.COLUMNS:
            written, unreadable = encrypted_fields.reseal(column)
            lost += unreadable
            name = f"{column.model._meta.verbose_name_plural}, {column.field}"
            self.stdout.write(f"{name}: {written} rewritten, {unreadable} not readable")
        if lost:
            raise CommandError(
                f"{lost} texts were sealed under a key that is in neither setting. "
                "Put that key into BERTH_SECRET_KEY_FALLBACKS, or enter the texts again."
            )
