"""Creates what a new installation starts with: administrator, team, catalog, this machine's pool."""

from __future__ import annotations

import os
import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from portal.accounts import services
from portal.accounts.models import Team, User
from portal.catalog.services import ensure_starting_catalog, prefer_environment
from portal.common.actors import SYSTEM
from portal.environments import curated
from portal.environments.curated import DATA_SCIENCE, VSCODE
from portal.inventory import services as inventory
from portal.inventory.models import Pool

ADMIN = "admin"
TEAM = "default"
POOL = "this-machine"
PREFERRED = (("jupyterlab", DATA_SCIENCE), ("terminal", DATA_SCIENCE), ("vscode", VSCODE))
"""Templates and the environments that their workspaces get by default."""


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            password = self._ensure_admin()
            admin = User.objects.get(username=ADMIN)
            if not Team.objects.filter(slug=TEAM).exists():
                services.create_team(actor=SYSTEM, slug=TEAM, name="Default", owner=admin)
            ensure_starting_catalog()
            made = curated.ensure()
            # Once, when it is made: an operator's choice stays.
            for template, environment in PREFERRED:
                if environment in made:
                    prefer_environment(template=template, environment=environment)
            if not Pool.objects.filter(driver="local").exists():
                inventory.create_pool(
                    actor=SYSTEM,
                    slug=POOL,
                    name="This machine",
                    driver="local",
                    config={"node": settings.BERTH_NODE_NAME},
                )
        if password:
            self.stdout.write(f"Administrator “{ADMIN}”, password: {password}")
            self.stdout.write("It is shown only now. Change it with: manage.py changepassword admin")

    def _ensure_admin(self) -> str:
        """Create the administrator once; returns the password where it was made up here."""
        if User.objects.filter(username=ADMIN).exists():
            return ""
        given = os.environ.get("BERTH_ADMIN_PASSWORD", "")
        if given:
            try:
                validate_password(given, User(username=ADMIN))
            except ValidationError as error:
                raise CommandError(
                    "BERTH_ADMIN_PASSWORD is refused: " + " ".join(error.messages) + " Choose another one."
                ) from error
        password = given or secrets.token_urlsafe(12)
        User.objects.create_superuser(ADMIN, email="", password=password, is_operator=True, is_approver=True)
        return "" if given else password
