"""Read, modify, write: PUT and PATCH accept the full representation of GET, for every kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from portal.notify.channels import sending
from portal.notify.channels.sending import SendOutcome
from portal.people.accounts.models import User
from tests import sites
from tests.api.conftest import document, problem
from tests.api.test_editing import BOOKED, EDITS, KINDS, _made, _put, _there
from tests.factories import MembershipFactory, UserFactory

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
HALF = {
    "slug": "half",
    "name": "Half",
    "resources": {
        "cpu_milli": 1000,
        "memory_mib": 1024,
        "accelerators": {"count": 1, "share_milli": 500},
    },
}


def _secret(path: str) -> Callable[[Any], str]:
    def make(program: Any) -> str:
        assert program.put(path, {"value": "s3cret"}).status_code == 201
        return path

    return make


def _workspace(program: Any) -> str:
    made = program.post("workspaces", {"template": "jupyterlab", "flavor": "sim-cpu", "team": "vision"})
    assert made.status_code == 201, made.content
    return f"workspaces/{made.json()['id']}"


MAINTENANCE = {"begins_at": BOOKED["starts_at"], "ends_at": BOOKED["ends_at"], "reason": "Switch"}
MADE: dict[str, tuple[str, Callable[[Any], str]]] = {
    **{name: (kind.actor, kind.make) for name, kind in KINDS.items()},
    "announcement": ("olga", _made("announcements", {"text": "New driver on Monday."})),
    "environment": ("olga", _made("environments", {"slug": "own", "name": "Own", "source": "numpy"})),
    "flavor": ("olga", _there("flavors/sim-h100-x1")),
    "half of a GPU": ("olga", _made("flavors", HALF)),
    "maintenance": ("olga", _put("maintenance", MAINTENANCE)),
    "maintenance of a pool": ("olga", _put("pools/sim/maintenance", MAINTENANCE)),
    "my secret": ("bob", _secret("me/secrets/KEY")),
    "pool": ("olga", _there("pools/sim")),
    "reclaim policy": ("olga", _made("reclaim-policies", {"for": "team:vision", "idle_minutes": 60})),
    "team": ("olga", _there("teams/vision")),
    "team's egress": ("olga", _put("teams/vision/egress", {"egress": "none"})),
    "team's secret": ("alice", _secret("teams/vision/secrets/KEY")),
    "template": ("olga", _there("templates/jupyterlab")),
    "template's secret": ("olga", _secret("templates/jupyterlab/secrets/KEY")),
    "workspace": ("bob", _workspace),
}  # fmt: skip


def _still(shown: dict[str, Any]) -> dict[str, Any]:
    """The representation without running durations."""
    return {name: value for name, value in shown.items() if name != "stages"}


def _edits() -> dict[str, set[str]]:
    """The editing methods, by path of the OpenAPI document."""
    paths = document()["paths"]
    return {path: found for path, methods in paths.items() if (found := methods.keys() & set(EDITS))}


def _template_of(path: str) -> str:
    """The path in the OpenAPI document."""
    return next(
        template
        for template in sorted(_edits(), key=lambda template: template.count("{"))
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), f"/api/v1/{path}")
    )


@pytest.fixture
def people(alice: User, bob: User, olga: User, petra: User, team: Any, pool: Any) -> dict[str, User]:
    MembershipFactory(team=team, user=UserFactory(username="dora"))
    root = UserFactory(username="root", is_superuser=True)
    return {"alice": alice, "bob": bob, "olga": olga, "petra": petra, "root": root}


@pytest.fixture(params=sorted(MADE))
def made(request: pytest.FixtureRequest, api: Any, people: Any, monkeypatch: Any) -> tuple[Any, str, str]:
    """A client that may edit, the path, and the method."""
    monkeypatch.setattr(sending, "inspect_url", lambda url: SendOutcome(ok=True, service="Slack"))
    actor, make = MADE[request.param]
    program = api(people[actor])
    path = make(program)
    methods = _edits()[_template_of(path)]
    return program, path, "PATCH" if "patch" in methods else "PUT"


def test_round_trip_changes_nothing(made: tuple[Any, str, str]) -> None:
    program, path, method = made
    read = program.get(path)
    written = program.send(method, path, read.json(), **{"If-Match": read["ETag"]})
    assert written.status_code == 200, written.content
    again = program.get(path)
    assert again["ETag"] == read["ETag"]
    assert _still(again.json()) == _still(read.json())


def test_outdated_version_is_refused(made: tuple[Any, str, str]) -> None:
    """Outdated read-only fields are not a client error."""
    program, path, method = made
    read = program.get(path)
    older = {name: _older(name, value) for name, value in read.json().items()}
    refused = program.send(method, path, older, **{"If-Match": '"0123456789abcdef"'})
    assert refused.status_code == 412, refused.content
    assert program.get(path)["ETag"] == read["ETag"]


def _older(name: str, value: Any) -> Any:
    return value - 1 if name in ("version", "spent") else value


def test_changed_read_only_field_is_a_field_error(made: tuple[Any, str, str]) -> None:
    program, path, method = made
    read = program.get(path).json()
    name = next((name for name in ("id", "slug", "team", "resource", "username", "name") if name in read), "")
    operation = document()["paths"][_template_of(path)][method.lower()]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    if not name or name in document()["components"]["schemas"][schema]["properties"]:
        return
    refused = problem(program.send(method, path, {**read, name: "other"}), 400, "invalid")
    assert list(refused["errors"]) == [name]
    assert _still(program.get(path).json()) == _still(read)


def test_all_editable_resources_are_covered(api: Any, people: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sending, "inspect_url", lambda url: SendOutcome(ok=True, service="Slack"))
    tried = {_template_of(make(api(people[actor]))) for actor, make in MADE.values()}
    assert tried == _edits().keys()


def test_partial_body_changes_only_its_fields(api: Any, people: Any) -> None:
    program = api(people["olga"])
    program.put("ledgers/vision", {"quota": 3600, "period": "day"})
    read = program.get("ledgers/vision").json()
    # Only a full representation may have outdated read-only values.
    assert program.put("ledgers/vision", {**read, "spent": 5, "quota": 7200}).json()["quota"] == 7200
    refused = problem(program.put("ledgers/vision", {"quota": 1, "spent": 5}), 400, "invalid")
    assert refused["errors"] == {
        "spent": ["Read-only, and not the current value. Read the resource again, or omit the field."]
    }
    refused = problem(program.put("ledgers/vision", {**read, "nonsense": 1}), 400, "invalid")
    assert list(refused["errors"]) == ["nonsense"]
    assert "Unknown field" in refused["errors"]["nonsense"][0]


def test_secret_accepts_its_full_representation_with_a_value(api: Any, people: Any) -> None:
    program = api(people["bob"])
    path = _secret("me/secrets/KEY")(program)
    read = program.get(path).json()
    assert (read["vault_path"], read["vault_key"]) == ("", "")
    assert program.put(path, {**read, "value": "renewed"}).json()["version"] == 2


def test_nested_fields_are_named_by_their_path(api: Any, people: Any) -> None:
    program = api(people["olga"])
    read = program.get("flavors/sim-h100-x1").json()
    read["resources"]["accelerators"]["isolated"] = False
    refused = problem(program.send("PATCH", "flavors/sim-h100-x1", read), 400, "invalid")
    assert list(refused["errors"]) == ["resources.accelerators.isolated"]


def test_missing_edit_permission_reveals_nothing(api: Any, people: Any) -> None:
    read = api(people["bob"]).get("flavors/sim-h100-x1").json()
    problem(
        api(people["bob"]).send("PATCH", "flavors/sim-h100-x1", {**read, "slug": "other"}), 403, "not_allowed"
    )


def test_unknown_field_of_a_creating_put_is_a_field_error(api: Any, olga: User) -> None:
    body = {"ends_at": "2036-12-01T18:00:00Z", "reason": "Switch", "by": 1}
    refused = api(olga).send("PUT", "maintenance", body)
    assert problem(refused, 400, "invalid")["errors"].keys() == {"by"}
