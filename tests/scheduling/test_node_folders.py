"""Node folders of a template: who may name them, and where its workspaces are placed."""

from __future__ import annotations

import pytest

from portal.catalog import entries
from portal.catalog.models import Template
from portal.common.errors import InvalidInput
from portal.fleet.inventory.models import Node
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.verdicts import Outcome
from portal.workspaces import dispatch
from portal.workspaces.lifecycle import State
from tests.factories import local_pool_with, node_info
from tests.scheduling.test_software_requirements import needs, verdict
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db


@pytest.fixture
def nodes(catalog):
    """One node with ImageNet, one with write access to it, and one without."""
    shown = ("mount:imagenet",)
    return local_pool_with(
        node_info("none"),
        node_info("reads", provides=shown),
        node_info("writes", provides=(*shown, "mount:imagenet:rw")),
    )


def named(*words: str) -> Template:
    return needs(mounts=list(words))


@pytest.mark.parametrize(
    ("words", "fitting"),
    [((), {"none", "reads", "writes"}), (("imagenet",), {"reads", "writes"}), (("imagenet:rw",), {"writes"})],
)
def test_request_is_placed_where_all_its_folders_are_offered(nodes, team, make, alice, words, fitting):
    named(*words)
    found = set()
    for node in Node.objects.all():
        Node.objects.update(cordoned=True)
        Node.objects.filter(pk=node.pk).update(cordoned=False)
        rows_changed()
        if verdict(team, alice, "cpu-small").outcome is Outcome.FITS_NOW:
            found.add(node.name)
    assert found == fitting
    Node.objects.update(cordoned=False)
    rows_changed()
    workspace = make(alice)
    assert workspace.state == State.PROVISIONING
    assert workspace.allocations.get().node.name in fitting
    assert dispatch.spec_of(workspace).mounts == words


def test_missing_folders_are_the_refusal_reason(nodes, team, alice):
    named("imagenet", "coco:rw")
    refused = verdict(team, alice, "cpu-small")
    assert refused.outcome is Outcome.IMPOSSIBLE
    assert refused.reason.code is AdmissionCode.NO_NODE_SHOWS_FOLDERS
    assert "imagenet, coco:rw" in refused.message and "BERTH_MOUNTS" in refused.next_action
    codes = {reason.code for _node, reason in refused.reasons}
    assert codes == {PlacementCode.FOLDER_MISSING}


def test_placed_workspace_keeps_its_folders(nodes, make, alice, olga, clock):
    template = named("imagenet")
    workspace = make(alice)
    clock.shift(1)
    entries.change(actor=olga, entry=template, values={"mounts": []})
    workspace.refresh_from_db()
    assert dispatch.spec_of(workspace).mounts == ("imagenet",)
    clock.shift(1)
    assert dispatch.spec_of(make(alice)).mounts == ()


@pytest.mark.parametrize(
    "given",
    [["../etc"], ["/etc"], ["imagenet:ro"], ["IMAGENET"], ["a", "a:rw"], [""], ["a\n"], [1], "imagenet",
     [["a"]], [f"f{number}" for number in range(9)]],
)  # fmt: skip
def test_invalid_folder_lists_are_refused(catalog, olga, given):
    with pytest.raises(InvalidInput) as refused:
        entries.change(actor=olga, entry=Template.objects.get(slug="jupyterlab"), values={"mounts": given})
    assert list(refused.value.extra["errors"]) == ["mounts"]


def test_team_templates_cannot_mount_folders(team, alice, olga):
    body = {"slug": "lab", "name": "Lab", "program": "python3", "argv": ["python3", "{port}", "{token}"]}
    for actor in (alice, olga):
        with pytest.raises(InvalidInput) as refused:
            entries.create(actor=actor, model=Template, values={**body, "mounts": ["imagenet"]}, team=team)
        assert list(refused.value.extra["errors"]) == ["mounts"]


def test_pages_list_mounted_folders(nodes, make, alice, olga, as_user):
    named("imagenet", "scratch:rw")
    Template.objects.filter(slug="jupyterlab").update(mounts=["imagenet"])
    page = as_user(alice).get(f"/workspaces/{make(alice).pk}/").content.decode()
    assert "/data/imagenet" in page and "read only" in page
    form = as_user(olga).get("/catalog/templates/jupyterlab/edit/").content.decode()
    assert 'name="mounts"' in form and 'value="imagenet"' in form
