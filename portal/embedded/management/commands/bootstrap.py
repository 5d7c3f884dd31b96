"""Set up a new installation: administrator, team, catalog and a pool for this machine.

Without BERTH_ADMIN_PASSWORD, generate a password and show it once; with --link, show a link instead where
the administrator chooses one. Prefer --link if output is logged: each link works once.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from portal.catalog.environments import curated
from portal.catalog.environments.curated import DATA_SCIENCE, VSCODE
from portal.catalog.services import ensure_starting_catalog, prefer_environment
from portal.common.actors import SYSTEM
from portal.common.formatting import format_date
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Pool
from portal.people.accounts import services, users
from portal.people.accounts.models import AccountState, SiteRole, Team, User

ADMIN = "admin"
TEAM = "default"
POOL = "this-machine"
ADMIN_ROLES = (SiteRole.ADMINISTRATOR, SiteRole.OPERATOR, SiteRole.APPROVER)
PREFERRED = (("jupyterlab", DATA_SCIENCE), ("terminal", DATA_SCIENCE), ("vscode", VSCODE))
"""Templates and the default environments of their workspaces."""


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--link",
            action="store_true",
            help="show a link to choose the administrator's password, until the password is set",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            lines = self._ensure_admin(link=options["link"])
            admin = User.objects.get(username=ADMIN)
            if not Team.objects.filter(slug=TEAM).exists():
                services.create_team(actor=SYSTEM, slug=TEAM, name="Default", owner=admin)
            ensure_starting_catalog()
            environments = curated.ensure()
            # Only when the environment is created, so that an operator's choice is kept.
            for template, environment in PREFERRED:
                if environment in environments:
                    prefer_environment(template=template, environment=environment)
            if not Pool.objects.filter(driver="local").exists():
                inventory.create_pool(
                    actor=SYSTEM,
                    slug=POOL,
                    name="This machine",
                    driver="local",
                    config={"node": settings.BERTH_NODE_NAME},
                )
        for line in lines:
            self.stdout.write(line)

    def _ensure_admin(self, *, link: bool) -> list[str]:
        """Create the administrator once. Returns the lines to print."""
        admin = User.objects.filter(username=ADMIN).first()
        if admin is not None and not (link and admin.state == AccountState.INVITED):
            return []
        preset = os.environ.get("BERTH_ADMIN_PASSWORD", "")
        if preset and admin is None:
            self._create_admin(preset)
            return []
        if link:
            invitation = (
                users.invite_again(actor=SYSTEM, user=admin)
                if admin
                else users.invite(actor=SYSTEM, username=ADMIN, roles=ADMIN_ROLES)
            )
            until = format_date(invitation.expires_at)
            return [
                f"Administrator “{ADMIN}”: choose a password before {until}: {invitation.url}",
                "The link works once. For another: manage.py bootstrap --link",
            ]
        password = secrets.token_urlsafe(12)
        self._create_admin(password)
        return [
            f"Administrator “{ADMIN}”, password: {password}",
            f"Shown only once. Change it with: manage.py changepassword {ADMIN}",
        ]

    def _create_admin(self, password: str) -> None:
        try:
            validate_password(password, User(username=ADMIN))
        except ValidationError as error:
            raise CommandError("BERTH_ADMIN_PASSWORD is not valid: " + " ".join(error.messages)) from error
        User.objects.create_superuser(ADMIN, email="", password=password, is_operator=True, is_approver=True)
