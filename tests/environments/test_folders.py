"""Environments in existing folders of nodes: chosen and inspected, never built."""

from __future__ import annotations

from typing import Any

import pytest

from portal.catalog.environments import documents, selectors, services, upkeep
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import Environment, EnvironmentBuild, StoredContent
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Node
from provisioning.environment_messages import EnvironmentBuild as BuildCommand
from provisioning.environment_messages import Package, SourceKind
from provisioning.environments.folders import digest_of_folder, fingerprint_of
from provisioning.types import HeldEnvironment
from tests import sites
from tests.environments.helpers import build_of, built, commands, environment, failed, only
from tests.factories import inventory_of, node_info

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
PATH = "/opt/conda/envs/ml"
PACKAGES = (Package("ipykernel", "6.29"), Package("numpy", "2.1.0"))


def held(*, path: str = PATH, programs: tuple[str, ...] = ("jupyter-lab", "python3")) -> HeldEnvironment:
    rows = ((each.name, each.version) for each in PACKAGES)
    return HeldEnvironment(
        digest_of_folder(path), 0, programs, path, "3.11.7", len(PACKAGES), fingerprint_of("3.11", rows)
    )


@pytest.fixture
def folder_pool(local_pool):
    """node-1 offers the folder, node-2 does not."""
    infos = (node_info(environments=(held(),)), node_info("node-2"))
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(*infos))
    Node.objects.update(online=True)
    return local_pool


def of_folder(path: str = PATH, **fields: Any) -> Environment:
    return environment(**{"name": "ML", "source_kind": "folder", "source": path, "python": ""} | fields)


def report_inspection(command: BuildCommand, **fields: Any) -> bool:
    said = {"digest": digest_of_folder(PATH), "lock": "", "packages": PACKAGES, "size_mib": 0}
    return built(command, **said | {"python_version": "3.11.7", "programs": ("jupyter-lab",)} | fields)


def test_folder_is_inspected_on_its_node_and_built_nowhere(folder_pool, sent):
    made = of_folder(f"{PATH}/")
    command = only(sent)
    assert (command.source_kind, command.source, command.lock) == (SourceKind.FOLDER, PATH, "")
    assert build_of(command).node.name == "node-1"
    assert report_inspection(command)
    made.refresh_from_db()
    current = made.current
    assert current is not None
    assert (current.python, current.python_version, current.digest) == (
        "3.11",
        "3.11.7",
        digest_of_folder(PATH),
    )
    assert not StoredContent.objects.exists()
    upkeep.sweep()
    assert commands(sent) == [] and EnvironmentBuild.objects.count() == 1
    assert [holding.holds for holding in selectors.holdings(current.digest)] == [True, False]


def test_only_operators_use_folders_and_only_offered_ones(folder_pool, alice, team):
    with pytest.raises(NotAllowed):
        of_folder(actor=alice, team=team)
    with pytest.raises(InvalidInput) as refused:
        of_folder("/opt/conda/envs/gone")
    (reason,) = refused.value.extra["errors"]["source"]
    assert reason.code is EnvironmentCode.FOLDER_NOT_THERE and reason.params["known"] == [PATH]
    for path in ("opt/x", "/opt/../etc", "/opt/a b", "/"):
        with pytest.raises(InvalidInput):
            of_folder(path)
    assert not Environment.objects.filter(name="ML").exists()


def test_site_file_may_name_a_folder_that_no_node_offers_yet(local_pool, sent):
    documents.create(
        actor=SYSTEM, slug="ml", team=None, values={"name": "ML", "source_kind": "folder", "source": PATH}
    )
    upkeep.sweep()
    assert commands(sent) == []
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(node_info(environments=(held(),))))
    upkeep.sweep()
    assert report_inspection(only(sent))
    found = documents.documents()["ml"]
    assert (found["source"], found.get("python")) == (PATH, None)


def test_result_for_another_folder_is_refused(folder_pool, sent):
    made = of_folder()
    assert report_inspection(only(sent), digest=digest_of_folder("/etc"))
    assert made.versions.get().failure["code"] == EnvironmentCode.BUILD_UNSOUND


def test_folder_that_is_no_longer_offered_fails_and_is_retried(folder_pool, sent):
    made = of_folder()
    failed(only(sent), "no_such_folder")
    version = made.versions.get()
    assert version.failure["code"] == EnvironmentCode.BUILD_NO_SUCH_FOLDER
    assert version.retry_at is not None


def test_rebuild_updates_the_content_of_a_folder(folder_pool, sent):
    made = of_folder()
    report_inspection(only(sent), programs=("python3",))
    digest = digest_of_folder(PATH)
    assert selectors.content_of(digest).programs == ("python3",)
    services.rebuild(actor=SYSTEM, environment=made)
    report_inspection(only(sent), programs=("jupyter-lab", "python3"))
    assert "jupyter-lab" in selectors.content_of(digest).programs
    assert made.versions.count() == 2


def test_pages_show_nodes_of_a_folder_and_missing_programs(folder_pool, sent, olga, as_user):
    bare = held(path="/srv/bare", programs=("python3",))
    inventory.apply_inventory(
        pool=folder_pool, inventory=inventory_of(node_info(environments=(held(), bare)), node_info("node-2"))
    )
    browser = as_user(olga)
    form = browser.get("/environments/new/").content.decode()
    assert "/srv/bare · Python 3.11.7 · 2 packages · node-1 · no JupyterLab" in form
    given = {"name": "ML", "source_kind": "folder", "python": "3.12"}
    assert browser.post("/environments/new/", given).status_code == 400
    assert browser.post("/environments/new/", {**given, "folder": PATH}).status_code == 302
    report_inspection(only(sent), programs=("python3",))
    page = browser.get("/environments/ml/").content.decode()
    assert PATH in page and "Missing" in page and "Python 3.11.7, 2 packages" in page
    assert "Missing: jupyter-lab, marimo" in page and "Check again" in page
    changing = {"do": "preview", "source_kind": "folder", "folder": "/srv/bare", "python": "3.12"}
    preview = browser.post("/environments/ml/edit/", changing).content.decode()
    assert "on node-1. Nothing is built." in preview and "Templates that need these cannot run" in preview


def test_team_owners_do_not_see_folders(folder_pool, team, alice, as_user):
    form = as_user(alice).get("/environments/new/").content.decode()
    assert PATH not in form and 'value="folder"' not in form


def test_folder_environment_over_rest(folder_pool, sent, olga, as_user):
    client = as_user(olga)
    body = {"name": "ML", "source_kind": "folder", "source": PATH}
    answer = client.post("/api/v1/environments", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    report_inspection(only(sent))
    current = client.get("/api/v1/environments/ml").json()["current"]
    assert (current["source_kind"], current["state"], current["python"]) == ("folder", "ready", "3.11")
    response = client.post("/api/v1/environments", {**body, "source": "/x"}, content_type="application/json")
    assert response.status_code == 400 and "No node can use an environment in /x" in response.content.decode()
