"""Create an API token for a user and print only the token."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import PortalError
from portal.common.scopes import Scope
from portal.people.accounts import tokens
from portal.people.accounts.models import User


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="name of the user")
        parser.add_argument(
            "--scopes", nargs="+", default=[Scope.ALL.value], metavar="SCOPE", help=", ".join(Scope.values)
        )
        parser.add_argument("--name", default="command line", help="purpose of the token")
        parser.add_argument("--days", type=int, default=0, help="lifetime in days; 0: no expiry")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"User “{options['user']}” not found. Check the spelling.")
        scopes = [part for item in options["scopes"] for part in item.split(",") if part]
        days = options["days"]
        if days < 0:
            raise CommandError("--days cannot be negative. Omit it for a token without expiry.")
        try:
            created = tokens.create_token(
                actor=SYSTEM,
                user=user,
                name=options["name"],
                scopes=scopes,
                expires_at=timezone.now() + timedelta(days=days) if days else None,
            )
        except PortalError as error:
            raise CommandError(f"{error.message} {error.next_action}") from error
        self.stdout.write(created.secret)
