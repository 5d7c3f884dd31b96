"""`manage.py status` is `python -m portal.embedded status`, which runs without Django."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Show services. Exit code: 0 all run, 1 some, 3 none."
    requires_system_checks = []

    def handle(self, *_args: Any, **options: Any) -> None:
        flags = ["--keep-workspaces"] if options.get("keep_workspaces") else []
        os.execv(sys.executable, [sys.executable, "-m", "portal.embedded", "status", *flags])  # noqa: S606
