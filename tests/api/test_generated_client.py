"""A client generated from the OpenAPI document, used against a running portal."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.fleet.inventory.maintenance import set_maintenance
from tests.api.conftest import DOCUMENT
from tests.factories import UserFactory, make_token

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.thorough("generates a client; `make test` validates the document"),
]
PACKAGE = "berth_generated"
STREAMS = {"follow_events"}
"""Answered as text that does not end."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the package. A generator warning means a skipped operation or field, so it fails."""
    folder = tmp_path_factory.mktemp("client")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate", "--path", str(DOCUMENT)),
            *("--output-path", str(folder / PACKAGE), "--meta", "none", "--fail-on-warning"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        # The generator formats with ruff, which is installed beside this Python.
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield PACKAGE
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def as_user(generated: str, server: str) -> Iterator[Callable[[Any], Any]]:
    client = importlib.import_module(f"{generated}.client").AuthenticatedClient
    with ExitStack() as open_clients:
        yield lambda user: open_clients.enter_context(client(base_url=server, token=make_token(user)[1]))


def operation(generated: str, name: str) -> Any:
    return importlib.import_module(f"{generated}.api.{name}")


def model(generated: str, name: str, fields: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(f"{generated}.models"), name).from_dict(fields)


def test_client_creates_follows_and_deletes_a_workspace(
    generated: str, as_user: Any, bob: Any, team: Any, pool: Any
) -> None:
    client = as_user(bob)
    wish = {"template": "jupyterlab", "flavor": "sim-h100-x4", "team": "vision", "name": "by-client"}
    body = model(generated, "WorkspaceCreateRequest", wish)
    create = operation(generated, "workspaces.create_workspace")
    made = create.sync(client=client, body=body, idempotency_key="once")
    assert (made.name, made.state.value, made.owner) == ("by-client", "provisioning", "bob")
    assert create.sync(client=client, body=body, idempotency_key="once").id == made.id

    page = operation(generated, "workspaces.list_workspaces").sync(client=client, name="by-client")
    assert [row.id for row in page.results] == [made.id] and page.next_ is None
    events = operation(generated, "workspaces.list_workspace_events").sync(made.id, client=client)
    assert [row.actor for row in events.results][:1] == ["bob"]
    feed = operation(generated, "notices.list_events").sync(client=client, workspace=made.id)
    assert [row.type_.value for row in feed.results] == ["workspace.requested"]
    response = operation(generated, "workspaces.delete_workspace").sync_detailed(made.id, client=client)
    assert response.status_code in (202, 204)


def test_refusal_is_a_problem_with_codes(
    generated: str, as_user: Any, bob: Any, team: Any, pool: Any
) -> None:
    client = as_user(bob)
    wish = {"template": "jupyterlab", "flavor": "no-such", "team": "vision"}
    refused = operation(generated, "workspaces.create_workspace").sync_detailed(
        client=client, body=model(generated, "WorkspaceCreateRequest", wish)
    )
    assert refused.status_code == 400
    assert refused.parsed.code.value == "invalid"
    assert "flavor" in refused.parsed.errors.to_dict()


def test_client_parses_every_list(generated: str, as_user: Any, team: Any, pool: Any) -> None:
    """Every list without path parameters, as an administrator."""
    ada = UserFactory(username="ada", is_superuser=True)
    client = as_user(ada)
    begin = timezone.now() + timedelta(days=30)
    set_maintenance(actor=ada, pool=None, begins_at=begin, ends_at=begin + timedelta(days=1), reason="Switch")
    api = importlib.import_module(f"{generated}.api")
    asked = []
    for found in pkgutil.walk_packages(api.__path__, f"{api.__name__}."):
        name = found.name.rsplit(".", 1)[1]
        if found.ispkg or not name.startswith(("list_", "get_")) or name in STREAMS:
            continue
        call = importlib.import_module(found.name).sync_detailed
        needed = [
            each
            for each in inspect.signature(call).parameters.values()
            if each.default is each.empty and each.name != "client"
        ]
        if needed:
            continue
        answer = call(client=client)
        assert answer.status_code == 200, (name, answer.content)
        assert answer.parsed is not None, name
        asked.append(name)
    assert len(asked) > 40, asked
