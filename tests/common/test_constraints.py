"""Constraint names of an `IntegrityError`, by database."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import IntegrityError, connection, transaction
from django.db.models import Model
from django.utils import timezone

from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.common.constraints import violates
from portal.common.errors import StateConflict
from portal.common.models import IdempotencyRecord
from portal.fleet.inventory.models import Pool
from portal.fleet.machines.models import Machine
from portal.people.accounts.models import FailureWindow, Membership, Team, User
from portal.people.identity.models import IdentityLink
from portal.people.identity.services import LINK_UNIQUE
from portal.people.scim.models import ScimGroup, ScimUser
from portal.people.service_accounts.models import Exchange
from portal.quota.limits.models import Cohort
from portal.reclaim.models import ReclaimPolicy
from portal.reclaim.policy_services import TARGET_UNIQUE
from portal.workspaces import services
from portal.workspaces.models import Workspace
from portal.workspaces.services import NAME_UNIQUE
from tests.factories import TeamFactory, UserFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
PORTAL = Path(__file__).parents[2] / "portal"

USED: dict[type[Model], tuple[str, ...]] = {
    Environment: ("slug",),
    Exchange: ("digest",),
    FailureWindow: ("key",),
    Flavor: ("flavor_slug_unique",),
    Template: ("template_slug_unique",),
    IdempotencyRecord: ("idempotency_record_unique",),
    IdentityLink: LINK_UNIQUE,
    Cohort: ("slug",),
    Machine: ("name",),
    Pool: ("pool_slug_unique",),
    ReclaimPolicy: TARGET_UNIQUE,
    ScimGroup: ("scim_group_name_unique",),
    ScimUser: ("user",),
    User: ("username", "user_email_unique"),
    Workspace: (NAME_UNIQUE,),
}
"""Every name that the portal asks `violates` for."""


def raised_by(act: Callable[[], Any]) -> IntegrityError:
    with pytest.raises(IntegrityError) as raised, transaction.atomic():
        act()
    return raised.value


def test_unique_constraint_on_columns(team: Team, bob: User) -> None:
    error = raised_by(lambda: Membership.objects.create(team=team, user=bob))
    assert violates(error, Membership, "membership_unique")
    assert not violates(error, User, "username", "user_email_unique")


def test_unique_constraint_with_a_condition() -> None:
    for subject in ("one", "two"):
        IdentityLink.objects.create(user=UserFactory(), provider="corp", subject=subject, how="created")
    error = raised_by(lambda: IdentityLink.objects.update(subject="one"))
    assert violates(error, IdentityLink, "identity_subject_unique")
    assert violates(error, IdentityLink, *LINK_UNIQUE)
    assert not violates(error, IdentityLink, "identity_expected_unique", "identity_user_unique")


def test_unique_constraint_on_an_expression() -> None:
    UserFactory(email="nora@example.org")
    error = raised_by(lambda: UserFactory(email="Nora@example.org"))
    assert violates(error, User, "user_email_unique")
    assert not violates(error, User, "username")


def test_unique_field_and_primary_key(bob: User) -> None:
    now = timezone.now()
    FailureWindow.objects.create(key="a", began_at=now, count=1)
    error = raised_by(lambda: FailureWindow.objects.create(key="a", began_at=now, count=1))
    assert violates(error, FailureWindow, "key")
    ScimUser.objects.create(user=bob, user_name="bob")
    error = raised_by(lambda: ScimUser.objects.create(user=bob, user_name="x"))
    assert violates(error, ScimUser, "user")


def test_other_integrity_errors_do_not_match(bob: User) -> None:
    both = {"is_auditor": True, "is_operator": True}
    check = raised_by(lambda: User.objects.filter(pk=bob.pk).update(**both))
    empty = raised_by(lambda: User.objects.filter(pk=bob.pk).update(date_joined=None))
    for error in (check, empty, IntegrityError(), IntegrityError("FOREIGN KEY constraint failed")):
        assert not any(violates(error, model, *names) for model, names in USED.items())


def test_unknown_constraint_name_raises() -> None:
    with pytest.raises(FieldDoesNotExist):
        violates(IntegrityError(), User, "membership_unique")
    with pytest.raises(ValueError, match=r"User\.first_name is not unique"):
        violates(IntegrityError(), User, "first_name")


def test_all_used_constraint_names_exist_in_the_database() -> None:
    """PostgreSQL names constraints of unique fields itself."""
    for model, names in USED.items():
        violates(IntegrityError(), model, *names)
        if connection.vendor != "postgresql":
            continue
        table = model._meta.db_table
        with connection.cursor() as cursor:
            known = set(connection.introspection.get_constraints(cursor, table))
        named = {constraint.name for constraint in model._meta.constraints}
        columns = {name: model._meta.get_field(name) for name in names if name not in named}
        expected = {name for name in names if name in named}
        for field in columns.values():
            expected.add(f"{table}_pkey" if field.primary_key else f"{table}_{field.column}_key")
        assert expected <= known


def test_each_caught_integrity_error_is_checked_by_constraint() -> None:
    """Code that catches one checks its constraint or retries."""
    retries = {"people/identity/services.py:sign_in"}
    unseen = set()
    for path in PORTAL.rglob("*.py"):
        text = path.read_text()
        if "except" not in text or "IntegrityError" not in text:
            continue
        for function in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)):
            handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
            for handler in handlers:
                head, _, body = ast.unparse(handler).partition(":")
                if "IntegrityError" in head and "violates(" not in body and "was_claimed(" not in body:
                    unseen.add(f"{path.relative_to(PORTAL)}:{function.name}")
    assert unseen == retries


def test_unrelated_integrity_error_is_not_reported_as_name_taken(
    make: Any, alice: User, local_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(alice, name="same")
    with pytest.raises(StateConflict) as refused:
        make(alice, name="same")
    assert refused.value.code == "name_taken"

    def broken(_workspace: Workspace) -> None:
        TeamFactory(slug=Team.objects.values_list("slug", flat=True)[0])

    monkeypatch.setattr(services, "RequestChanged", broken)
    for name in ("other", ""):
        with pytest.raises(IntegrityError):
            make(alice, name=name)
    assert Workspace.objects.count() == 1
