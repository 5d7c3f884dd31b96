"""A client like a Terraform provider, driven by the OpenAPI document of a running instance.

For every editable kind, it sends back the full representation. Nothing may change, and no kind may be
missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.instance import Berth, eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough(
        "each kind on a running Berth; tests/api/test_round_trips.py has them in `make test`"
    ),
]
EDITS = ("put", "patch")
TRIES = 5
"""A workspace changes by itself: a client that meets 412 reads again."""
MOVES = frozenset({"stages", "heartbeat_at", "last_activity_at"})
"""Fields of a running workspace that change between two reads."""
TEAM, PERSON = "robots", "ben"
NEW = {
    "auto-approve-rules": {"resource": "gpu:h100", "amount_at_most": 2000, "hours_at_most": 24},
    "cohorts": {"slug": "robot-cohort"},
    "environments": {"slug": "robots", "name": "Robots", "source": "numpy", "build": False},
    "flavors": {
        "slug": "robot",
        "name": "Robot",
        "resources": {
            "cpu_milli": 1000,
            "memory_mib": 1024,
            "accelerators": {"count": 1, "share_milli": 500},
        },
    },
    "member-caps": {"team": TEAM, "resource": "gpu", "amount": 2000},
    "notice-channels": {
        "name": "Robots",
        "url": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        "kinds": ["workspace.failed"],
        "team": TEAM,
    },
    "quotas": {"team": TEAM, "resource": "gpu:h100", "quota": 4000},
    "reclaim-policies": {"for": f"team:{TEAM}", "idle_minutes": 60},
    "pools": {
        "slug": TEAM,
        "name": "Robots",
        "driver": "simulated",
        "config": {"nodes": 1, "gpus": 2, "model": "H100"},
    },
    f"teams/{TEAM}/service-accounts": {"name": "ci"},
    "announcements": {"text": "A new switch tomorrow."},
    "templates": {"slug": "robot", "name": "Robot", "program": "bash", "argv": ["serve", "{port}"]},
    "webhooks": {"name": "Robots", "url": "https://hooks.example/a", "types": ["workspace.started"]},
}  # fmt: skip
"""What is created by a POST, by its collection."""
SET = {
    f"budgets/{TEAM}": {"amount_cents": 100},
    f"ledgers/{TEAM}": {"quota": 3600, "period": "day"},
    "me/dotfiles": {"url": "https://git.example/dotfiles"},
    "me/secrets/ROBOT": {"value": "s3cret"},
    "rates/gpu:h100": {"rate_milli": 2000},
    "site-limits/gpu:h100": {"amount": 8000},
    f"teams/{TEAM}/egress": {"egress": "none"},
    f"teams/{TEAM}/members/{PERSON}": {"role": "member"},
    f"teams/{TEAM}/secrets/ROBOT": {"value": "s3cret"},
    f"teams/{TEAM}/share": {"cohort": None, "weight_milli": 2000, "reclaim": True},
    "templates/robot/secrets/ROBOT": {"value": "s3cret"},
}
"""What is created by a PUT."""


@dataclass
class Provider:
    """Knows only the site's URL, a token and the OpenAPI document."""

    http: httpx.Client
    document: dict[str, Any]
    made: list[str] = field(default_factory=list)

    def kinds(self) -> dict[str, list[str]]:
        """The editing methods of every readable and editable kind, by path of the document."""
        paths = self.document["paths"]
        return {
            path: methods
            for path, operations in paths.items()
            if "get" in operations and (methods := [method for method in EDITS if method in operations])
        }

    def kind_of(self, path: str) -> str:
        return next(
            kind
            for kind in sorted(self.kinds(), key=lambda kind: kind.count("{"))
            if re.fullmatch(re.sub(r"{\w+}", "[^/]+", kind), path)
        )

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self.http.request(method, path, json=body, headers=headers)

    def create(self, collection: str, body: Any) -> str:
        made = self.ask("POST", f"/api/v1/{collection}", body)
        assert made.status_code == 201, f"{collection}: {made.text}"
        path = made.headers["Location"]
        self.made.append(path)
        return str(path)

    def put(self, path: str, body: Any) -> None:
        set_ = self.ask("PUT", f"/api/v1/{path}", body)
        assert set_.status_code in (200, 201), f"{path}: {set_.text}"
        self.made.append(f"/api/v1/{path}")

    def listed(self, kind: str) -> Iterator[str]:
        """The paths of existing objects: rows of a list, and their parts."""
        collection, _, name = kind.rpartition("/")
        if not name.startswith("{"):
            if collection in self.document["paths"]:
                parts = (f"{path}/{name}" for path in self.listed(collection))
                # Not every object has every part; one of each is created.
                yield from (path for path in parts if self.ask("GET", path).status_code != 404)
            return
        if "{" in collection or "get" not in self.document["paths"].get(collection, {}):
            return
        key = "id" if name.endswith("_id}") else name[1:-1]
        rows = self.ask("GET", collection)
        assert rows.status_code == 200, rows.text
        for row in rows.json()["results"]:
            # Service accounts are edited below their team.
            if row.get("kind") != "service":
                # Budgets and ledgers are named by their team.
                yield f"{collection}/{row[key] if key in row else row['team']}"

    def create_workspace(self) -> None:
        """Create a simulated workspace and wait until it runs."""
        flavor = f"{TEAM}-cpu"
        eventually(
            lambda: self.ask("GET", f"/api/v1/flavors/{flavor}").is_success,
            limit_s=60,
            what="the pool's own flavors are there",
        )
        path = self.create("workspaces", {"template": "jupyterlab", "flavor": flavor, "team": TEAM})
        self.until(path, "running")

    def until(self, path: str, state: str) -> None:
        eventually(
            lambda: self.ask("GET", path).json()["state"] == state,
            limit_s=60,
            what=lambda: self.ask("GET", path).text,
        )

    def round_trip(self, path: str, method: str) -> None:
        """Read, send back in full with the version, and read again."""
        own = SET.get(path.removeprefix("/api/v1/"), {}) if method == "put" else {}
        for _ in range(TRIES):
            read = self.ask("GET", path)
            assert read.status_code == 200, f"{path}: {read.text}"
            before = read.json()
            # No response has the secret's value: a provider takes it from its configuration.
            sent = {**{name: value for name, value in own.items() if name not in before}, **before}
            written = self.ask(method.upper(), path, sent, **{"If-Match": read.headers["ETag"]})
            if written.status_code != 412:
                break
        assert written.status_code == 200, f"{method} {path}: {written.text}"
        again = self.ask("GET", path)
        # Writing a value again creates a new version of the secret.
        renewed = () if sent == before else ("version", "changed_at", "changed_by")
        assert _still(again.json(), *renewed) == _still(before, *renewed), path
        if sent == before and path.rpartition("/")[0] != "/api/v1/workspaces":
            assert again.headers["ETag"] == read.headers["ETag"], path
        refused = self.ask(method.upper(), path, sent, **{"If-Match": '"0123456789abcdef"'})
        assert refused.status_code == 412, f"{method} {path}: {refused.text}"

    def delete(self, path: str) -> None:
        """Delete what was created; archive or deactivate what leaves records."""
        operations = self.document["paths"][self.kind_of(path)]
        if "delete" not in operations:
            return
        response = self.ask("DELETE", path)
        if path.startswith("/api/v1/workspaces/"):
            self.until(path, "terminated")
        elif path.startswith("/api/v1/teams/") and response.status_code == 409:
            response = self.ask("POST", f"{path}/archive", {})
        elif response.status_code == 409:
            response = self.ask("PATCH", path, {"enabled": False})
        assert response.status_code in (200, 202, 204, 404), f"{path}: {response.text}"


def _still(shown: dict[str, Any], *without: str) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name not in MOVES.union(without)}


@pytest.fixture
def provider(shared_berth: Berth) -> Iterator[Provider]:
    with httpx.Client(base_url=f"http://127.0.0.1:{shared_berth.port}", timeout=30) as http:
        http.headers["Authorization"] = f"Bearer {shared_berth.manage('create_token', 'admin')}"
        served = http.get("/api/v1/schema", headers={"Accept": "application/json"})
        assert served.status_code == 200, served.text[:500]
        found = Provider(http, served.json())
        with ExitStack() as stack:
            stack.callback(lambda: [found.delete(path) for path in reversed(found.made)])
            found.create("teams", {"slug": TEAM, "name": "Robots"})
            for collection, body in NEW.items():
                found.create(collection, body)
            for path, body in SET.items():
                found.put(path, body)
            found.create_workspace()
            begins, ends = tomorrow().values()
            planned = {"begins_at": begins, "ends_at": ends, "reason": "A new switch."}
            for path in ("maintenance", f"pools/{TEAM}/maintenance"):
                found.put(path, planned)
            found.create("reservations", reservation())
            yield found


def tomorrow() -> dict[str, str]:
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    return {"starts_at": begins.isoformat(), "ends_at": (begins + timedelta(hours=2)).isoformat()}


def reservation() -> dict[str, Any]:
    return {"team": TEAM, "title": "Robots", "amounts": {"gpu:simulated-h100": 1000}, **tomorrow()}


def test_every_resource_round_trips_without_changes(provider: Provider) -> None:
    tried: set[tuple[str, str]] = set()
    for kind, methods in provider.kinds().items():
        paths = dict.fromkeys(path for path in provider.made if provider.kind_of(path) == kind)
        paths |= dict.fromkeys(provider.listed(kind))
        for path in paths:
            for method in methods:
                provider.round_trip(path, method)
                tried.add((kind, method))
    expected = {(kind, method) for kind, methods in provider.kinds().items() for method in methods}
    assert tried == expected, sorted(expected - tried)
    assert len(provider.kinds()) > 20
    print(len(expected), "operations of", len(provider.kinds()), "kinds")
