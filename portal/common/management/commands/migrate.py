"""`manage.py migrate`: Django's, which makes an empty database at once (`portal.common.new_database`)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.core.management.commands import migrate
from django.db import connections

from portal.common import new_database

ALTERED = ("app_label", "plan", "check_unapplied", "prune", "fake", "fake_initial")
"""Options with which the migrations themselves are meant."""


class Command(migrate.Command):
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--step-by-step",
            action="store_true",
            help="Runs every migration in an empty database, too, instead of making its tables at once.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        connection = connections[options["database"]]
        if not options["step_by_step"] and not any(options[name] for name in ALTERED):
            connection.prepare_database()
            made = new_database.make(connection)
            if made and options["verbosity"] >= 1:
                self.stdout.write(f"The tables of {made} migrations were made in an empty database.")
        super().handle(*args, **options)
