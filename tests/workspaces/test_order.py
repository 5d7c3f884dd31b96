"""Workspace orders: identity and duration."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest

from portal.catalog.environments.models import Environment
from portal.catalog.repositories.rules import Source
from portal.workspaces.order import WorkspaceOrder
from tests.factories import FlavorFactory, TeamFactory, TemplateFactory

OTHERS: dict[str, Any] = {
    "team": TeamFactory.build(slug="audio"),
    "template": TemplateFactory.build(slug="vscode"),
    "flavor": FlavorFactory.build(slug="gpu-2"),
    "name": "mine",
    "expected_s": 3600,
    "lifetime_s": 7200,
    "priority": 1,
    "checkpointed": False,
    "fallbacks": (FlavorFactory.build(slug="gpu-2"),),
    "start_within_s": 600,
    "environment": Environment(slug="vision-tools"),
    "secrets": ("TOKEN_A",),
    "git": Source(url="", ref="", secret=""),
    "start_without_gpu": True,
    "move_home": True,
    "bound_to": UUID(int=1),
}


@pytest.fixture
def order() -> WorkspaceOrder:
    return WorkspaceOrder(
        team=TeamFactory.build(slug="vision"),
        template=TemplateFactory.build(slug="jupyterlab"),
        flavor=FlavorFactory.build(slug="gpu-1"),
    )


def test_another_value_of_any_field_changes_the_digest(order):
    assert OTHERS.keys() == {field.name for field in fields(WorkspaceOrder)}
    digests = {replace(order, **{name: value}).digest() for name, value in OTHERS.items()}
    assert len(digests | {order.digest()}) == len(OTHERS) + 1


def test_digest_ignores_name_case_and_secret_order(order):
    first = replace(order, name="mine", secrets=("A", "B"))
    second = replace(order, name=" Mine ", secrets=["B", "A"])
    assert first.digest() == second.digest()


def test_duration_is_the_shorter_limit(order):
    assert replace(order, expected_s=600, lifetime_s=7200).duration_s == 600
    assert replace(order, expected_s=7200, lifetime_s=600).duration_s == 600
    assert order.duration_s == order.flavor.expected_hours * 3600
