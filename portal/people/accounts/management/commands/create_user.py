"""Create an account. Without BERTH_USER_PASSWORD, print a link where the user chooses a password."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from portal.common.actors import SYSTEM
from portal.common.errors import PortalError
from portal.people.accounts import users
from portal.people.accounts.models import Role, SiteRole


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="username; also names the home folders")
        parser.add_argument("--email", default="", metavar="ADDRESS")
        parser.add_argument(
            "--team", action="append", default=[], metavar="SLUG", help="team to join; repeatable"
        )
        parser.add_argument(
            "--role",
            action="append",
            default=[],
            choices=[*Role.values, *SiteRole.values],
            help="role in these teams (default: member), or in the whole portal; repeatable",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        in_teams = [role for role in options["role"] if role in Role.values]
        if len(in_teams) > 1 or (in_teams and not options["team"]):
            raise CommandError("Choose one team role, and add --team.")
        role = in_teams[0] if in_teams else Role.MEMBER.value
        arguments: dict[str, Any] = {
            "actor": SYSTEM,
            "username": options["name"],
            "email": options["email"],
            "teams": dict.fromkeys(options["team"], role),
            "roles": [role for role in options["role"] if role in SiteRole.values],
        }
        password = os.environ.get("BERTH_USER_PASSWORD", "")
        try:
            with transaction.atomic():
                if password:
                    users.create(**arguments, password=password)
                    return
                link = users.invite(**arguments)
        except PortalError as error:
            problems = [f"{field}: {' '.join(sentences)}" for field, sentences in error.field_errors.items()]
            raise CommandError(" ".join(problems) or error.sentence) from error
        self.stdout.write(link.url)
