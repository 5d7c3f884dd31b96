"""`manage.py down` is `python -m portal.embedded down`, which runs without Django."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Stop everything that `up` started."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--keep-workspaces", action="store_true", help="keep workspaces running")

    def handle(self, *_args: Any, **options: Any) -> None:
        flags = ["--keep-workspaces"] if options.get("keep_workspaces") else []
        os.execv(sys.executable, [sys.executable, "-m", "portal.embedded", "down", *flags])  # noqa: S606
