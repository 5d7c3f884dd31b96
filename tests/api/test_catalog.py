"""Templates, flavors and POST /api/v1/admission/preview"""

from __future__ import annotations

from typing import Any

import pytest

from portal.workspaces.models import Workspace
from tests import sites
from tests.api.conftest import problem
from tests.factories import FlavorFactory, WorkspaceFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
ASK = {"team": "vision", "template": "jupyterlab", "flavor": "cpu-small"}


def test_templates_show_their_availability(api: Any, charlie: Any, catalog: Any) -> None:
    local_pool_with(node_info(programs=("jupyter-lab",)))

    rows = {row["slug"]: row for row in api(charlie).get("templates").json()["results"]}

    assert list(rows) == ["jupyterlab", "marimo", "terminal", "vscode", "rstudio"]
    assert rows["jupyterlab"]["available"] is True
    assert rows["vscode"]["available"] is False
    assert "code-server" in rows["vscode"]["reason"]
    assert api(charlie).get("templates/vscode").json() == rows["vscode"]


def test_flavors_and_workspaces_show_the_topology_of_accelerators(api: Any, alice: Any, team: Any) -> None:
    flavor = FlavorFactory(slug="pair", accelerator_count=2, within="numa")
    shown = api(alice).get("flavors/pair/").json()["resources"]["accelerators"]
    assert (shown["within"], shown["mig_profile"]) == ("numa", "")
    workspace = WorkspaceFactory(owner=alice, team=team, flavor=flavor)
    assert (
        api(alice).get(f"workspaces/{workspace.pk}/").json()["resources"]["accelerators"]["within"] == "numa"
    )
    # A workspace without a topology requirement.
    del workspace.resources["accelerators"]["within"]
    workspace.save()
    assert (
        api(alice).get(f"workspaces/{workspace.pk}/").json()["resources"]["accelerators"]["within"] == "node"
    )


def test_preview_creates_nothing(api: Any, bob: Any, team: Any, local_pool: Any) -> None:
    body = api(bob, "catalog:read").post("admission/preview", ASK).json()

    assert body == {
        "outcome": "fits_now",
        "message": "Starts now.",
        "next_action": "",
        "reason": {"code": "fits_now", "params": {}},
        "pool": "this-machine",
        "nodes": ["node-1"],
        "reasons": [],
        "position": None,
        "eta": None,
        "eta_basis": "",
        "member_order": "",
        "flavor": None,
        "next_flavor": "",
        "home_move": None,
        "home_move_offer": None,
        "blocker": None,
        "ask": None,
        "makes_room": 0,
        "without_gpu": False,
        "alternatives": ["cpu-large"] if ASK["flavor"] == "cpu-small" else ["cpu-small"],
        "warnings": [],
    }
    assert Workspace.objects.count() == 0


def test_preview_returns_200_with_the_outcome_if_impossible(
    api: Any, bob: Any, team: Any, catalog: Any
) -> None:
    local_pool_with(node_info(memory_mib=512))

    body = api(bob).post("admission/preview", ASK).json()

    assert body["outcome"] == "impossible"
    assert body["reasons"][0]["node"] == "node-1"
    assert body["next_action"]


def test_permissions_for_previews(
    api: Any, charlie: Any, olga: Any, bob: Any, team: Any, local_pool: Any
) -> None:
    problem(api(None).post("admission/preview", ASK), 401, "not_authenticated")
    problem(api(charlie).post("admission/preview", ASK), 400, "invalid")
    problem(api(olga).post("admission/preview", ASK), 403, "not_allowed")
    problem(api(bob).post("admission/preview", {"template": "jupyterlab"}), 400, "invalid")
