"""Requests generated from the OpenAPI document, valid and invalid ones.

`make test` sends valid requests for every second operation as an administrator. `make test-all` also sends
invalid ones, and both as a member of a team. Each response must match the document in status, headers and
body. Invalid requests must be refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any
from uuid import UUID

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, settings
from pytest_django import DjangoDbBlocker
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from portal.catalog.services import ensure_starting_catalog
from tests.api.test_schema import DOCUMENT
from tests.broker import Broker
from tests.factories import UserFactory, WorkspaceFactory, make_token, simulated_pool, vision
from tests.suite.choice import THOROUGH
from tests.worlds import World, shared, taken_back

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    missing_required_header,
    unsupported_method,
]
EXAMPLES = 3 if os.environ.get(THOROUGH) else 1
"""Random ones of each operation and token, beside one for each boundary and each way to break its schema.

Half of them are about what there is.
"""
WORKSPACE = UUID("00000000-0000-4000-8000-000000000015")
THERE = {
    "environments/{slug}": "nothing-yet",
    "flavors/{slug}": "sim-cpu",
    "ledgers/{slug}": "vision",
    "pools/{slug}": "sim",
    "teams/{slug}": "vision",
    "templates/{slug}": "jupyterlab",
    "users/{username}": "bob",
    "members/{username}": "bob",
    "workspaces/{workspace_id}": str(WORKSPACE),
}
"""What there is, by the end of a path up to it: every other request is about that."""


ROLES = ("administrator", "member")
PARTS = ("[a-e]", "[f-m]", "[n-q]", "[r-s]", "[t-v]", "w")
"""The document in parts, by how the paths begin: a test each."""


def generating(part: str, *modes: GenerationMode) -> Any:
    """A part of the document without streams, which do not end and have their own tests."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema = schema.include(path_regex=f"^/api/v1/{part}").exclude(path_regex="/stream$")
    schema.config.generation.update(modes=list(modes))
    return schema


@pytest.fixture
def role() -> str:
    """The default role."""
    return "administrator"


few = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def application() -> Any:
    """The portal's WSGI application, created once, as its middleware reads every route and file."""
    return get_wsgi_application()


@pytest.fixture(scope="module")
def secrets(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World[dict[str, str]]]:
    """A token by role."""

    def make(_sent: Broker) -> dict[str, str]:
        alice, bob = UserFactory(username="alice"), UserFactory(username="bob")
        team = vision(owner=alice, member=bob)
        ensure_starting_catalog()
        simulated_pool(str(tmp_path_factory.mktemp("sim")))
        people = dict(zip(ROLES, (UserFactory(username="root", is_superuser=True), bob), strict=True))
        WorkspaceFactory(pk=WORKSPACE, owner=bob, team=team)
        return {role: make_token(person)[1] for role, person in people.items()}

    with shared(django_db_blocker, make) as made:
        yield made


@pytest.fixture
def web(
    application: Any, secrets: World[dict[str, str]], role: str, db: None
) -> Iterator[Callable[..., Any]]:
    """The portal on the test's own connection, with the token."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    asked = 0

    def ask(case: schemathesis.Case) -> Any:
        nonlocal asked
        asked += 1
        if asked % 2:
            _about_what_is_there(case)
        headers = {"Authorization": f"Bearer {tokens[role]}"}
        return case.call(app=application, base_url="http://localhost", headers=headers)

    with secrets.met() as tokens:
        yield ask
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def _about_what_is_there(case: schemathesis.Case) -> None:
    """Keep invalid paths invalid: only valid paths get existing keys."""
    meta = case.meta
    if meta is None or meta.generation.mode is not GenerationMode.POSITIVE:
        return
    for end, value in THERE.items():
        if end in case.path:
            case.path_parameters[end.rpartition("{")[2].rstrip("}")] = value


@pytest.mark.slow("generates requests for every operation of a part")
@pytest.mark.parametrize("part", PARTS)
def test_responses_to_valid_requests_match_the_schema(
    subtests: pytest.Subtests, web: Callable[..., Any], part: str
) -> None:
    quick = (HypothesisTestMode.EXAMPLES, HypothesisTestMode.FUZZING)
    send_all(subtests, generating(part, GenerationMode.POSITIVE), web, quick, step=2)


@pytest.mark.thorough("many requests for each operation; `make test` sends the allowed ones in one role")
@pytest.mark.parametrize("role", ["administrator", "member"])
@pytest.mark.parametrize("part", PARTS)
def test_responses_to_all_requests_match_the_schema(
    subtests: pytest.Subtests, web: Callable[..., Any], part: str, role: str
) -> None:
    send_all(subtests, generating(part, GenerationMode.POSITIVE, GenerationMode.NEGATIVE), web)


def send_all(
    subtests: pytest.Subtests,
    schema: Any,
    web: Callable[..., Any],
    modes: Iterable[HypothesisTestMode] = HypothesisTestMode,
    step: int = 1,
) -> None:
    """Generate the requests of each operation, or of each `step`th, and validate the answers.

    `schema.parametrize()` would generate them while tests are collected, in each process of every run.
    """

    @few
    def check(case: schemathesis.Case) -> None:
        with taken_back():
            case.validate_response(web(case), checks=CHECKS)

    for found in islice(schema.get_all_operations(), 0, None, step):
        operation = found.ok()
        with subtests.test(operation.label):
            config = HypothesisTestConfig(modes=list(modes), project=schema.config)
            create_test(operation=operation, test_func=check, config=config)()
