"""Location and Retry-After of running operations, and rate limits."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common import rate_limits
from provisioning.version import VERSION
from tests.api.conftest import document, problem
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db

AT_THE_NEXT_START = "resetWorkspacePackages"
"""When that is nobody knows."""


def test_running_operation_names_its_url_and_delay() -> None:
    for methods in document()["paths"].values():
        for operation in methods.values():
            if (taken := operation["responses"].get("202")) is not None:
                expected = {"Location"} if operation["operationId"] == AT_THE_NEXT_START else None
                assert set(taken["headers"]) == (expected or {"Location", "Retry-After"}), operation


def test_stop_returns_the_url_of_the_workspace_and_a_delay(api: Any, alice: Any, team: Any) -> None:
    workspace = WorkspaceFactory(owner=alice, team=team, state="stopped")
    answer = api(alice).post(f"workspaces/{workspace.pk}/stop")
    assert answer.status_code == 202
    assert int(answer["Retry-After"]) > 0
    assert api(alice).get(answer["Location"]).json()["id"] == str(workspace.pk)


def test_version_is_shown_to_signed_in_users(api: Any, alice: Any) -> None:
    assert api(alice, "pools:read").get("version").json() == {"version": VERSION, "api": "v1"}
    problem(api(None).get("version"), 401, "not_authenticated")


def test_responses_show_the_rate_limit(api: Any, alice: Any, settings: Any, monkeypatch: Any) -> None:
    settings.BERTH_REQUESTS_PER_MINUTE = 7
    settings.BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS = 5
    assert api(alice).get("me")["RateLimit-Policy"] == '"user";q=7;w=60'
    assert api(None).get("me")["RateLimit-Policy"] == '"address";q=5;w=60'

    monkeypatch.setattr(rate_limits, "count_request", lambda *_: 12)
    refused = api(alice).get("me")
    problem(refused, 429, "throttled")
    assert refused["Retry-After"] == "12"
    assert set(document()["components"]["responses"]["TooManyRequests"]["headers"]) <= set(refused.headers)

    settings.BERTH_REQUESTS_PER_MINUTE = 0
    assert "RateLimit-Policy" not in api(alice).get("me")
