"""POST, PATCH, DELETE and versions of templates and flavors."""

from __future__ import annotations

from typing import Any

import pytest

from portal.catalog.models import Template
from tests.api.conftest import problem
from tests.factories import MembershipFactory

pytestmark = pytest.mark.django_db
SHELL = {"slug": "shell", "name": "Shell", "program": "bash", "argv": ["bash", "{port}", "{token_file}"]}


def test_owner_manages_the_templates_of_the_team(
    api: Any, alice: Any, bob: Any, charlie: Any, team: Any
) -> None:
    made = api(alice).post("templates", {**SHELL, "team": "vision"})
    assert made.status_code == 201
    row = made.json()
    assert (row["slug"], row["team"], row["warnings"]) == ("vision_shell", "vision", [])
    path = "templates/vision_shell"
    changed = api(alice).send("PATCH", path, {"env": {"A": "b"}}, **{"If-Match": made["ETag"]})
    assert changed.json()["env"] == {"A": "b"}
    stale = problem(
        api(alice).send("PATCH", path, {"env": {}}, **{"If-Match": made["ETag"]}), 412, "changed_meanwhile"
    )
    assert stale["changed_by"] == "alice"
    # A member can use it, but cannot read fields for editors.
    seen = api(bob).get(path).json()
    assert [seen[name] for name in ("argv", "env", "startup")] == [None, None, None]
    problem(api(bob).send("PATCH", path, {"name": "Mine"}), 403, "not_allowed")
    problem(api(bob).get(f"{path}/versions"), 403, "not_allowed")
    versions = api(alice).get(f"{path}/versions").json()
    assert [version["number"] for version in versions] == [2, 1]
    assert versions[0]["changes"] == [{"field": "env", "before": {}, "after": {"A": "b"}}]
    assert api(alice).post(f"{path}/versions/1/restore", {}).json()["env"] == {}
    # For others it does not exist.
    for method, where in (("GET", path), ("PATCH", path), ("DELETE", path), ("GET", f"{path}/versions")):
        hidden = problem(
            api(charlie).send(method, where, {} if method == "PATCH" else None), 404, "not_found"
        )
        unknown = problem(
            api(charlie).send(method, where.replace("shell", "none"), {} if method == "PATCH" else None),
            404,
            "not_found",
        )
        assert hidden["detail"].replace("shell", "none") == unknown["detail"]
        assert hidden["next_action"] == unknown["next_action"]
    assert "vision_shell" not in {
        result["slug"] for result in api(charlie).get("templates").json()["results"]
    }
    ask = {"team": "robots", "template": "vision_shell", "flavor": "cpu-small"}
    problem(api(charlie).post("workspaces", ask), 400, "invalid")
    problem(api(charlie).post("admission/preview", ask), 400, "invalid")
    assert api(alice).send("DELETE", path).status_code == 204
    problem(api(alice).get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"argv": "bash"}, "argv"),
        ({"argv": ["bash", None]}, "argv"),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "env"),
        ({"icon": "<script>"}, "icon"),
        ({"open_path": "//evil"}, "open_path"),
        ({"start_timeout_s": 10**9}, "start_timeout_s"),
        ({"position": 2**40}, "position"),
        ({"upstream_auth": "basic"}, "upstream_auth"),
        ({"service_workers": True, "team": "vision"}, "service_workers"),
        ({"pool": "sim"}, "pool"),
        ({"min_cuda": "99"}, "min_cuda"),
        ({"environment": "nonesuch"}, "environment"),
    ],
)
def test_invalid_input_is_a_field_error(api: Any, olga: Any, team: Any, given: Any, field: str) -> None:
    body = problem(api(olga).post("templates", {**SHELL, **given}), 400, "invalid")
    assert field in body["errors"]
    assert not Template.objects.exists()


def test_restricted_flavor_is_available_to_its_teams_only(
    api: Any, olga: Any, bob: Any, charlie: Any, team: Any, local_pool: Any
) -> None:
    size = {
        "slug": "tiny",
        "name": "Tiny",
        "resources": {"cpu_milli": 500, "memory_mib": 512},
        "teams": ["robots", "vision"],
    }
    assert api(olga).post("flavors", size).status_code == 201
    assert api(bob).get("flavors/tiny").json()["teams"] == ["vision"]
    assert api(olga).get("flavors/tiny").json()["teams"] == ["robots", "vision"]
    assert api(olga).send("PATCH", "flavors/tiny", {"teams": ["robots"]}).status_code == 200
    problem(api(bob).get("flavors/tiny"), 404, "not_found")
    ask = {"team": "vision", "template": "jupyterlab", "flavor": "tiny"}
    problem(api(bob).post("workspaces", ask), 400, "invalid")
    # An operator sees it, but cannot charge it to another team.
    MembershipFactory(team=team, user=olga)
    refused = problem(api(olga).post("workspaces", ask), 403, "not_allowed")
    assert refused["reason"]["code"] == "flavor_not_for_team"
    problem(api(olga).post("admission/preview", ask), 403, "not_allowed")


def test_disabled_entries_are_listed_on_request(api: Any, olga: Any, bob: Any, catalog: Any) -> None:
    assert api(olga).send("PATCH", "templates/marimo", {"enabled": False}).status_code == 200
    slugs = {result["slug"] for result in api(olga).get("templates").json()["results"]}
    assert "marimo" not in slugs
    off = api(olga).get("templates?enabled=false").json()["results"]
    assert [each["slug"] for each in off] == ["marimo"]
    assert api(bob).get("templates?enabled=false").json()["results"] == []
    problem(api(bob).get("templates/marimo"), 404, "not_found")


def test_flavor_resources_have_one_format_for_reading_and_writing(api: Any, olga: Any) -> None:
    operator = api(olga)
    accelerators = {"count": 2, "models": ["H100", "H200"], "memory_mib": 80_000, "within": "numa"}
    size = {
        "slug": "pair",
        "name": "Pair",
        "resources": {"cpu_milli": 500, "memory_mib": 512, "accelerators": accelerators},
    }
    made = operator.post("flavors", size).json()["resources"]
    assert made == {
        "cpu_milli": 500,
        "memory_mib": 512,
        "disk_mib": 0,
        "nodes": 1,
        "accelerators": {
            "model": "",
            "share_milli": 1000,
            "isolated": True,
            "mig_profile": "",
            **accelerators,
        },
    }
    # Omitted fields stay, on both levels.
    change = {"resources": {"cpu_milli": 700, "accelerators": {"count": 1}}}
    changed = operator.send("PATCH", "flavors/pair", change).json()["resources"]
    assert changed == made | {"cpu_milli": 700, "accelerators": made["accelerators"] | {"count": 1}}


@pytest.mark.parametrize(
    ("resources", "wrong"),
    [
        ({"cpu_milli": 1}, "resources.cpu_milli"),
        ({"cores": 1}, "resources.cores"),
        ({"accelerators": {"share_milli": 2000}}, "resources.accelerators.share_milli"),
        ({"accelerators": {"model": "H100", "models": ["H200"]}}, "resources.accelerators.count"),
        ({"nodes": 2, "accelerators": {"count": 1, "share_milli": 500}}, "resources.nodes"),
    ],
)
def test_errors_name_the_path_of_nested_resources(
    api: Any, olga: Any, resources: dict[str, Any], wrong: str
) -> None:
    size = {"slug": "s", "name": "S", "resources": {"cpu_milli": 500, "memory_mib": 512}}
    operator = api(olga)
    assert operator.post("flavors", size).status_code == 201
    refused = problem(operator.send("PATCH", "flavors/s", {"resources": resources}), 400, "invalid")
    assert wrong in refused["errors"]
    draft = size | {"resources": size["resources"] | resources}
    refused = problem(operator.post("catalog/preview", {"flavor_draft": draft}), 400, "invalid")
    assert f"flavor_draft.{wrong}" in refused["errors"]
