"""Editable resources return a version and accept `If-Match`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.utils import timezone

from portal.notify.channels import sending
from portal.notify.channels.sending import SendOutcome
from portal.people.accounts.models import User
from tests import sites
from tests.api.conftest import document, problem
from tests.factories import MembershipFactory, UserFactory

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
EDITS = ("put", "patch")
ENDS_AN_ACCOUNT = {"deleteUser", "deleteServiceAccount"}
"""Whoever ends an account ends it whatever its address has become meanwhile."""


@dataclass(frozen=True)
class Kind:
    """A kind of resource: `make` creates it and returns its editor and path below /api/v1/."""

    make: Callable[[Any], str]
    method: str
    first: Any
    second: Any
    actor: str = "olga"
    deleted: bool = True
    verb: str = ""
    """What ends it by a POST below its path, where it is not deleted: `cancel` or `revoke`."""

    def end(self, program: Any, path: str, version: str) -> Any:
        if self.verb:
            return program.post(f"{path}/{self.verb}", **{"If-Match": version})
        return program.delete(path, **{"If-Match": version})


def _made(path: str, body: Any) -> Callable[[Any], str]:
    def make(program: Any) -> str:
        made = program.post(path, body)
        assert made.status_code == 201, made.content
        where: str = made["Location"].removeprefix("/api/v1/")
        assert made["ETag"] == program.get(where)["ETag"]
        return where

    return make


def _put(path: str, body: Any) -> Callable[[Any], str]:
    def make(program: Any) -> str:
        assert program.put(path, body).status_code == 200
        return path

    return make


def _node(program: Any) -> str:
    return f"nodes/{program.get('nodes').json()['results'][0]['id']}"


def _there(path: str) -> Callable[[Any], str]:
    return lambda _program: path


TOMORROW = timezone.now().replace(microsecond=0) + dt.timedelta(days=1)
BOOKED = {
    "title": "Paper",
    "amounts": {"gpu:simulated-h100": 4000},
    "starts_at": TOMORROW.isoformat(),
    "ends_at": (TOMORROW + dt.timedelta(hours=2)).isoformat(),
}
HOOK = {"name": "Ours", "url": "https://hooks.example/a", "types": ["workspace.started"]}
CHANNEL = {"name": "Ours", "url": "slack://a/b/c", "kinds": ["workspace.failed"], "team": "vision"}
CAP = {"team": "vision", "resource": "gpu", "amount": 2000}
RULE = {"resource": "gpu:h100", "amount_at_most": 2000, "hours_at_most": 24}
SHARE = {"cohort": None, "weight_milli": 2000, "reclaim": True}
KINDS = {
    "quota": Kind(
        _made("quotas", {"team": "vision", "resource": "gpu:h100", "quota": 4000}),
        "PUT",
        {"quota": 2000},
        {"quota": 1000},
    ),
    "cap": Kind(_made("member-caps", CAP), "PUT", {"amount": 1000}, {"amount": 0}),
    "cohort": Kind(
        _made("cohorts", {"slug": "research"}),
        "PUT",
        {"name": "Research", "parent": None, "weight_milli": 1000},
        {"name": "Research", "parent": None, "weight_milli": 3000},
    ),
    "share": Kind(
        _there("teams/vision/share"), "PUT", SHARE, {**SHARE, "reclaim": False}, deleted=False
    ),
    "ledger": Kind(
        _put("ledgers/vision", {"quota": 3600, "period": "day"}),
        "PUT",
        {"quota": 7200, "period": "day"},
        {"quota": 7200, "period": "week"},
    ),
    "budget": Kind(
        _put("budgets/vision", {"amount_cents": 100}),
        "PUT",
        {"amount_cents": 200},
        {"amount_cents": 200, "blocks": True},
    ),
    "rule": Kind(
        _made("auto-approve-rules", RULE), "PATCH", {"hours_at_most": 12}, {"enabled": False}, actor="petra"
    ),
    "reservation": Kind(
        _made("reservations", {**BOOKED, "team": "vision"}),
        "PUT",
        {**BOOKED, "title": "Thesis"},
        {**BOOKED, "amounts": {"gpu:simulated-h100": 3000}},
        actor="alice",
        verb="cancel",
    ),
    "site limit": Kind(
        _put("site-limits/gpu:h100", {"amount": 8000}), "PUT", {"amount": 4000}, {"amount": 2000}
    ),
    "rate": Kind(
        _put("rates/gpu:h100", {"rate_milli": 2000}), "PUT", {"rate_milli": 2500}, {"rate_milli": 3000}
    ),
    "place": Kind(
        _there("teams/vision/members/dora"),
        "PUT",
        {"role": "owner"},
        {"role": "member"},
        actor="alice",
        verb="revoke",
    ),
    "dotfiles": Kind(
        _there("me/dotfiles"),
        "PUT",
        {"url": "https://git.example/dotfiles"},
        {"url": "https://git.example/dotfiles", "ref": "main"},
        actor="bob",
        deleted=False,
    ),
    "webhook": Kind(
        _made("webhooks", HOOK), "PATCH", {"name": "Theirs"}, {"url": "https://hooks.example/b"}
    ),
    "channel": Kind(
        _made("notice-channels", CHANNEL), "PATCH", {"name": "Theirs"}, {"enabled": False}, actor="alice"
    ),
    "service account": Kind(
        _made("teams/vision/service-accounts", {"name": "ci"}),
        "PATCH",
        {"description": "Nightly"},
        {"description": "Hourly"},
        actor="alice",
        deleted=False,
    ),
    "user": Kind(
        _there("users/dora"),
        "PATCH",
        {"email": "dora@other.example"},
        {"teams": [{"team": "vision", "role": "owner"}]},
        actor="root",
        deleted=False,
    ),
    "node": Kind(_node, "PATCH", {"rack": "r1"}, {"rack": "r1", "block": "b1"}, deleted=False),
    "checks": Kind(
        _there("pools/sim/checks"), "PUT", {"check_every_hours": 5}, {"check_every_hours": 6}, deleted=False
    ),
}  # fmt: skip


@pytest.fixture
def people(alice: User, bob: User, olga: User, petra: User, team: Any, pool: Any) -> dict[str, User]:
    MembershipFactory(team=team, user=UserFactory(username="dora"))
    root = UserFactory(username="root", is_superuser=True)
    return {"alice": alice, "bob": bob, "olga": olga, "petra": petra, "root": root}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    monkeypatch.setattr(sending, "inspect_url", lambda url: SendOutcome(ok=True, service="Slack"))
    return KINDS[request.param]


def test_second_of_two_editors_gets_a_conflict(api: Any, people: dict[str, User], kind: Kind) -> None:
    program = api(people[kind.actor])
    path = kind.make(program)
    seen = program.get(path)["ETag"]
    first = program.send(kind.method, path, kind.first, **{"If-Match": seen})
    assert first.status_code == 200, first.content
    assert first["ETag"] == program.get(path)["ETag"] != seen
    problem(program.send(kind.method, path, kind.second, **{"If-Match": seen}), 412, "changed_meanwhile")
    if kind.deleted:
        problem(kind.end(program, path, seen), 412, "changed_meanwhile")
    after = program.get(path)
    assert after["ETag"] == first["ETag"]
    assert json.dumps(after.json()) == json.dumps(program.get(path).json())
    second = program.send(kind.method, path, kind.second, **{"If-Match": after["ETag"]})
    assert second.status_code == 200, second.content
    assert second["ETag"] != first["ETag"]
    if kind.deleted:
        assert kind.end(program, path, second["ETag"]).status_code in (200, 204)


def test_last_write_wins_without_a_version(api: Any, people: dict[str, User], kind: Kind) -> None:
    program = api(people[kind.actor])
    path = kind.make(program)
    assert program.send(kind.method, path, kind.first).status_code == 200
    assert program.send(kind.method, path, kind.second, **{"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("ledgers/vision", {"quota": 3600, "period": "day"}),
        ("budgets/vision", {"amount_cents": 100}),
        ("site-limits/gpu:h100", {"amount": 1000}),
        ("rates/gpu:h100", {"rate_milli": 2000}),
        ("teams/vision/members/petra", {"role": "member"}),
    ],
)
def test_missing_row_with_a_version_is_refused(
    api: Any, people: dict[str, User], path: str, body: Any
) -> None:
    refused = api(people["olga"]).put(path, body, **{"If-Match": '"0123456789abcdef"'})
    problem(refused, 412, "changed_meanwhile")
    problem(api(people["olga"]).get(path), 404, "not_found")


def test_missing_permission_is_reported_before_a_conflict(api: Any, people: dict[str, User]) -> None:
    path = KINDS["quota"].make(api(people["olga"]))
    problem(api(people["bob"]).put(path, {"quota": 0}, **{"If-Match": '"x"'}), 403, "not_allowed")


def test_version_does_not_reveal_a_hidden_title(api: Any, people: dict[str, User], charlie: User) -> None:
    path = KINDS["reservation"].make(api(people["alice"]))
    api(people["petra"]).post(f"{path}/approve")
    answer = api(charlie).get(path)
    assert answer.status_code == 200 and answer.json()["title"] == ""
    assert "ETag" not in answer


def _operations() -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    found = {}
    for methods in document()["paths"].values():
        for method, each in methods.items():
            if method in (*EDITS, "delete"):
                found[each["operationId"]] = (method, each, methods)
    return found


def _takes_versions(operation: dict[str, Any]) -> bool:
    named = {each.get("name") for each in operation.get("parameters", ())}
    return "If-Match" in named and "412" in operation["responses"]


def test_all_editable_resources_accept_if_match() -> None:
    operations = _operations()
    edits = {name: found for name, found in operations.items() if found[0] in EDITS}
    assert edits
    assert not {name for name, (_method, _each, methods) in edits.items() if "get" not in methods}
    assert not {name for name, (_method, each, _methods) in edits.items() if not _takes_versions(each)}


def test_versioned_resources_check_versions_on_delete() -> None:
    without = {
        name
        for name, (method, each, methods) in _operations().items()
        if method == "delete"
        and not _takes_versions(each)
        and "get" in methods
        and any(edit in methods for edit in EDITS)
    }
    assert without == ENDS_AN_ACCOUNT


def test_versioned_resources_check_versions_on_cancel_and_revoke() -> None:
    paths = document()["paths"]
    ends = {
        path: methods["post"]
        for path, methods in paths.items()
        if path.endswith(("/cancel", "/revoke"))
        and any(edit in paths.get(path.rpartition("/")[0], {}) for edit in EDITS)
    }
    named = {each["operationId"] for each in ends.values()}
    assert named == {"cancelAnnouncement", "cancelReservation", "revokeTeamMember"}
    assert all(_takes_versions(each) for each in ends.values())
