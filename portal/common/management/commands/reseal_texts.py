"""`manage.py reseal_texts`: re-encrypt secrets, webhook secrets and channel addresses with the current key.

Second factors and seals of the audit log still need the old key.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.common import encrypted_fields


class Command(BaseCommand):
    help = (
        "Re-encrypt secrets, webhook secrets and channel addresses with BERTH_SECRET_KEY. "
        "Keep the old key in BERTH_SECRET_KEY_FALLBACKS: second factors and seals of the audit log need it."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        lost = 0
        for column in encrypted_fields.COLUMNS:
            written, unreadable = encrypted_fields.reencrypt(column)
            lost += unreadable
            name = f"{column.model._meta.verbose_name_plural}, {column.field}"
            self.stdout.write(f"{name}: {written} re-encrypted, {unreadable} unreadable")
        if lost:
            raise CommandError(
                f"{lost} texts are unreadable: their key is in neither setting. "
                "Add that key to BERTH_SECRET_KEY_FALLBACKS, or enter the texts again."
            )
