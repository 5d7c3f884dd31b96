"""Users, tokens and small templates for a running instance: `python -m tests.populate`, JSON on stdout.

Run with the instance's environment variables. Existing rows are kept, so it can be repeated.
"""

from __future__ import annotations

import json
import os
import sys

PASSWORD = "correct-horse-battery"
TEAM = "lab"
PEOPLE = {"ada": "owner", "ben": "member"}
# Serves the home folder: an app that starts at once and shows any page of a test.
SERVE_HOME = ["python3", "-I", "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", "{home}"]


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from django.db import transaction

    with transaction.atomic():
        tokens = _people()
        add_catalog()
    json.dump(tokens, sys.stdout)


def _people() -> dict[str, str]:
    """Users and their team; a token with all scopes for each."""
    from portal.common.actors import SYSTEM
    from portal.people.accounts import services
    from portal.people.accounts import tokens as account_tokens
    from portal.people.accounts.models import Team, User

    tokens = {}
    for name in PEOPLE:
        user = User.objects.filter(username=name).first()
        if user is None:
            user = User.objects.create_user(name, email="", password=PASSWORD)
        tokens[name] = account_tokens.create_token(actor=SYSTEM, user=user, name="tests").secret
    team = Team.objects.filter(slug=TEAM).first() or services.create_team(actor=SYSTEM, slug=TEAM, name="Lab")
    for name, role in PEOPLE.items():
        services.set_member(actor=SYSTEM, team=team, username=name, role=role)
    return tokens


def add_catalog() -> None:
    """The template `files` and the flavor `tiny`."""
    from portal.catalog.models import Flavor, Template

    Template.objects.update_or_create(
        slug="files",
        defaults={
            "name": "Files",
            "program": "bash",
            "argv": SERVE_HOME,
            "ready_path": "/",
            "open_path": "/",
            "start_timeout_s": 60,
            "stop_timeout_s": 2,
            "position": 900,
        },
    )
    Flavor.objects.update_or_create(
        slug="tiny",
        defaults={"name": "Tiny", "cpu_milli": 100, "memory_mib": 256, "position": 900},
    )


if __name__ == "__main__":
    main()
