"""The OpenAPI document is true: many requests are made from it, as it allows them and as it forbids them.

As an administrator, who may do nearly everything, and as a member of a team, who is refused much. Each answer
has to be one that the document knows, with its headers and its body, and what it forbids has to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from tests.worlds import World, shared

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
EXAMPLES = 3
"""Random ones of each operation and token, beside one for each boundary and each way to break its schema."""
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


# Streams do not end, which is what one waits for here; they have tests of their own.
schema = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="/stream$")
schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


@pytest.fixture(scope="module")
def application() -> Any:
    """The portal as a web server calls it, made once: its middleware reads every route and file."""
    return get_wsgi_application()


@pytest.fixture(scope="module", params=["administrator", "member"])
def secret(
    request: Any,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World[str]]:
    """Somebody's token, in the world that is asked about."""

    def make(_sent: Broker) -> str:
        alice, bob = UserFactory(username="alice"), UserFactory(username="bob")
        team = vision(owner=alice, member=bob)
        ensure_starting_catalog()
        simulated_pool(str(tmp_path_factory.mktemp("sim")))
        who = bob if request.param == "member" else UserFactory(username="root", is_superuser=True)
        WorkspaceFactory(pk=WORKSPACE, owner=bob, team=team)
        return make_token(who)[1]

    with shared(django_db_blocker, make) as made:
        yield made


@pytest.fixture
def web(application: Any, secret: World[str], db: None) -> Iterator[Callable[..., Any]]:
    """The portal on the test's own connection, asked with the token."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    asked = 0

    def ask(case: schemathesis.Case) -> Any:
        nonlocal asked
        asked += 1
        if asked % 2:
            _about_what_is_there(case)
        headers = {"Authorization": f"Bearer {token}"}
        return case.call(app=application, base_url="http://localhost", headers=headers)

    with secret.met() as token:
        yield ask
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def _about_what_is_there(case: schemathesis.Case) -> None:
    """Only where the path is good as it is: one that is broken shall stay so."""
    meta = case.meta
    if meta is None or meta.generation.mode is not GenerationMode.POSITIVE:
        return
    for end, value in THERE.items():
        if end in case.path:
            case.path_parameters[end.rpartition("{")[2].rstrip("}")] = value


@schema.parametrize()
@pytest.mark.django_db
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_requests_are_answered_as_the_document_says(case: schemathesis.Case, web: Callable[..., Any]) -> None:
    case.validate_response(web(case), checks=CHECKS)
