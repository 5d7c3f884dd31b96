from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal.embedded import workspaces


class Command(BaseCommand):
    """Print the number of workspaces by state as JSON, or stop all workspaces and wait."""

    help = "Count workspaces by state, or stop all of them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["count", "stop"])

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        self.stdout.write(json.dumps(workspaces.counts()) if action == "count" else workspaces.stop())
