"""Print the JSON Schema of a site file: `manage.py site_schema > docs/site.schema.json`."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand

from portal.site_file.schema import schema


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps(schema(), indent=1, ensure_ascii=False))
