"""An instance with its own package index and folder of environments."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from provisioning.environments.store import Store
from tests.instance import Api, Berth, eventually
from tests.provisioning.environments.package_index import PYTHON, PackageFolder

LIMIT_S = 120
TEMPLATE = {
    "slug": "served",
    "name": "Served",
    "program": "python3",
    "argv": ["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", "{home}"],
    "ready_path": "/",
    "open_path": "/",
}
SILENCE = """
import django
django.setup()
from django.utils import timezone
from portal.catalog.environments import upkeep
from portal.catalog.environments.models import OPEN, EnvironmentBuild
EnvironmentBuild.objects.filter(state__in=OPEN).exclude(lease="").update(lease_expires_at=timezone.now())
upkeep.sweep()
"""


class Site:
    """The instance, its index, and the contents of its environment folder."""

    def __init__(self, berth: Berth, packages: PackageFolder, admin: Api, ben: Api) -> None:
        self.berth, self.packages, self.admin, self.ben = berth, packages, admin, ben
        self.store = Store(berth.home / "environments")

    def ask(self, slug: str, source: str) -> None:
        body = {"name": slug, "slug": slug, "source": source, "python": PYTHON, "notebook": False}
        self.admin.json("POST", "environments", body)

    def builds(self, slug: str) -> list[dict[str, Any]]:
        builds: list[dict[str, Any]] = self.admin.json("GET", f"environments/{slug}/builds")["results"]
        return builds

    def ended(self, slug: str) -> dict[str, Any]:
        """The newest build, once finished."""

        def look() -> dict[str, Any] | None:
            rows = self.builds(slug)
            return rows[0] if rows and rows[0]["state"] in ("ready", "failed", "cancelled") else None

        return eventually(look, limit_s=LIMIT_S, what=lambda: f"a build has ended: {self.builds(slug)}")

    def log(self, slug: str) -> str:
        build = self.builds(slug)[0]["id"]
        return self.admin.ask("GET", f"environments/{slug}/builds/{build}/log").text

    def digest(self, slug: str) -> str:
        rows = self.berth.rows(
            "SELECT v.digest FROM environments_environmentversion v "
            "JOIN environments_environment e ON e.id = v.environment_id WHERE e.slug = ?", slug,
        )  # fmt: skip
        return str(rows[0]["digest"])

    def cannot_be_started(self, slug: str) -> None:
        """Check that a workspace with this environment is refused."""
        order = {"team": "lab", "template": TEMPLATE["slug"], "flavor": "tiny", "environment": slug}
        refused = self.ben.ask("POST", "workspaces", order)
        assert refused.status_code == 409, refused.text
        assert refused.json()["code"] == "environment_not_ready", refused.text

    def holding(self) -> set[str]:
        return {environment.digest for environment in self.store.environments()}

    def kill_node(self) -> None:
        """Kill the node worker; return once the supervisor has replaced it and its builds have ended."""
        old = self.pid("node")
        os.kill(old, signal.SIGKILL)
        eventually(lambda: self.pid("node") not in (0, old), limit_s=30, what="a new node worker is there")
        with contextlib.ExitStack() as held:
            # A running build holds this lock.
            eventually(
                lambda: held.enter_context(self.store.build_lock()),
                limit_s=30,
                what="what it built has ended",
            )

    def pid(self, service: str) -> int:
        state = self.berth.services().get(service, {})
        return int(state.get("pid") or 0) if state.get("state") == "running" else 0

    def a_minute_of_silence(self) -> None:
        """Expire leases, so that unanswered messages are sent again."""
        self.berth.run("-c", SILENCE, DJANGO_SETTINGS_MODULE="portal.settings")

    def is_ready_and_starts(self, slug: str, package: str) -> None:
        assert self.ended(slug)["state"] == "ready", self.log(slug)
        assert self.digest(slug) in self.holding()
        place = self.store.folder_of(self.digest(slug))
        assert list(place.glob(f"lib/python3*/site-packages/{package}.py"))
        assert not list(self.store.building.iterdir())
        workspace = self.ben.json(
            "POST",
            "workspaces",
            {"team": "lab", "template": TEMPLATE["slug"], "flavor": "tiny", "environment": slug},
        )
        self.ben.wait(workspace["id"], "running", limit_s=60)
        self.ben.act(workspace["id"], "delete")
        self.ben.wait(workspace["id"], "terminated", limit_s=30)
