"""The map of GPUs, device pages and node pages: content, permissions and query counts."""

from __future__ import annotations

import gzip
from dataclasses import replace
from html import unescape

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.fleet.inventory import cordons, services
from portal.fleet.inventory.device_states import LOOKS, DeviceState
from portal.fleet.inventory.models import CordonCause, Device, DeviceMinute, DeviceSeries, Node, Pool
from portal.web.fleet.presenters import gpu_map
from portal.web.fleet.presenters.gpu_zoom import UNKNOWN, Filters
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.share_messages import PROVIDES_SHARES
from provisioning.types import DeviceInfo, DeviceKind
from tests.factories import FlavorFactory, UserFactory, local_pool_with, node_info, simulated_pool
from tests.rows import preempt_at
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
H100 = "NVIDIA H100 80GB HBM3"


def gpu(node: str, index: int, **fields: object) -> DeviceInfo:
    return DeviceInfo(uuid=f"GPU-{node}-{index}", index=index, model=H100, memory_mib=81_559, **fields)


def node_with(name: str, count: int, *more: DeviceInfo, **fields: object):
    devices = (*(gpu(name, index) for index in range(count)), *more)
    return node_info(name, devices=devices, cpu_milli=64_000, memory_mib=524_288, **fields)


@pytest.fixture
def lab(catalog) -> Pool:
    pool = local_pool_with(node_with("gpu-01", 8), node_with("gpu-02", 2))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0)
    FlavorFactory(slug="gpu-1", accelerator_count=1, accelerator_model=H100)
    return pool


def device(node: str, index: int) -> Device:
    return Device.objects.get(uuid=f"GPU-{node}-{index}")


def shown_map(**filters: str) -> gpu_map.GpuMap:
    return gpu_map.gpu_map(UserFactory(), Filters(**filters), None, timezone.now())


def states(**filters: str) -> dict[str, list[DeviceState]]:
    found = shown_map(**filters)
    return {node.name: [cell.state for cell in node.cells] for group in found.groups for node in group.nodes}


def text(response) -> str:
    return " ".join(unescape(response.content.decode()).split())


def test_device_with_a_warning_is_allocated_last(lab, make, alice):
    Device.objects.filter(uuid__in=["GPU-gpu-01-0", "GPU-gpu-02-0"]).update(warning="slow")
    # Otherwise all of her workspaces would be placed with her home.
    Pool.objects.filter(pk=lab.pk).update(config={**lab.config, "homes_shared": True})
    taken = []
    for _ in range(10):
        make(alice, "gpu-1")
        last = Device.objects.filter(allocated__active=True).order_by("-allocated__pk")[0]
        taken.append(last.uuid)
    by_node = {node: [uuid for uuid in taken if node in uuid] for node in ("gpu-01", "gpu-02")}
    assert by_node["gpu-01"][-1] == "GPU-gpu-01-0" and by_node["gpu-02"][-1] == "GPU-gpu-02-0"
    assert len(taken) == len(set(taken)) == 10


def test_filters_hide_devices_and_nodes_without_a_match(lab):
    Device.objects.filter(uuid="GPU-gpu-02-1").update(checking=True)
    assert states(state="checking") == {"gpu-02": ["checking"]}
    assert list(states(q="01")) == ["gpu-01"]
    assert states(pool="other") == {} and states(model="T4") == {}
    assert len(states(model=H100)["gpu-01"]) == 8


def test_the_legend_filters_by_state_and_keeps_the_other_filters(lab, alice, as_user):
    client = as_user(alice)
    page = client.get(f"/gpus/?pool={lab.slug}&page=1").content.decode()
    assert f'href="?pool={lab.slug}&amp;state=free"' in page
    assert 'aria-current="true"><span class="gpu' not in page
    chosen = client.get(f"/gpus/?pool={lab.slug}&state=free").content.decode()
    assert f'href="?pool={lab.slug}" aria-current="true"><span class="gpu free' in chosen


def test_devices_of_an_offline_or_cordoned_node_have_its_state(lab, olga):
    node = Node.objects.get(name="gpu-02")
    Node.objects.filter(pk=node.pk).update(online=False)
    assert states()["gpu-02"] == ["offline", "offline"]
    # An operator's cordon is kept while offline.
    services.set_cordon(actor=olga, node_id=node.pk, cordoned=True, reason="Firmware")
    assert states()["gpu-02"] == ["cordoned", "cordoned"]


def test_partitioned_gpu_shows_its_instances(catalog, alice, as_user):
    parts = tuple(
        replace(
            gpu("gpu-03", 0), uuid=f"MIG-{start}", kind=DeviceKind.MIG, parent_uuid="GPU-gpu-03-0",
            mig_profile=profile, mig_start=start, memory_mib=9_000 * size, facts={"memory_slices": size},
        )
        for profile, start, size in (("3g.40gb", 0, 4), ("1g.10gb", 4, 1))
    )  # fmt: skip
    local_pool_with(node_info("gpu-03", devices=(replace(gpu("gpu-03", 0), mig_mode=True), *parts)))
    Device.objects.filter(uuid="MIG-4").update(checking=True)
    (group,) = shown_map().groups
    (cell,) = group.nodes[0].cells
    assert cell.label == "GPU 0, partitioned: 3g.40gb free, 1g.10gb being checked"
    assert [(part.start, part.size, part.state) for part in cell.segments] == [
        (0, 4, "free"), (4, 1, "checking"),
    ]  # fmt: skip
    client = as_user(alice)
    page = text(client.get(f"/gpus/devices/{Device.objects.get(uuid='GPU-gpu-03-0').pk}/"))
    assert "MIG instances" in page and "3g.40gb" in page
    part = client.get(f"/gpus/devices/{Device.objects.get(uuid='MIG-4').pk}/")
    assert "instance 1g.10gb of GPU 0 of gpu-03" in text(part)


@pytest.mark.parametrize(
    ("change", "state"), [({"healthy": False}, "failed"), ({"cordoned": True}, "cordoned")]
)
def test_instance_has_the_failed_state_of_its_gpu(catalog, olga, as_user, change, state):
    part = DeviceInfo(
        uuid="MIG-0", index=0, model=H100, memory_mib=9_856, kind=DeviceKind.MIG,
        parent_uuid="GPU-gpu-03-0", mig_profile="1g.10gb", mig_start=0, facts={"memory_slices": 1},
    )  # fmt: skip
    local_pool_with(node_info("gpu-03", devices=(replace(gpu("gpu-03", 0), mig_mode=True), part)))
    Device.objects.filter(uuid="GPU-gpu-03-0").update(**change)
    (cell,) = shown_map().groups[0].nodes[0].cells
    assert (cell.state, [segment.state for segment in cell.segments]) == (state, [state])
    part_row, gpu_row = Device.objects.get(uuid="MIG-0"), Device.objects.get(uuid="GPU-gpu-03-0")
    client = as_user(olga)
    word = str(LOOKS[DeviceState(state)].word)
    assert "The GPU of this instance is out of service." in text(client.get(f"/gpus/devices/{part_row.pk}/"))
    assert text(client.get(f"/gpus/devices/{gpu_row.pk}/")).count(word) >= 2
    assert text(client.get(f"/gpus/nodes/{gpu_row.node_id}/")).count(word) >= 2
    Device.objects.filter(uuid="MIG-0").update(checking=True)
    (cell,) = shown_map().groups[0].nodes[0].cells
    assert [segment.state for segment in cell.segments] == [state]


def test_devices_are_grouped_as_selected_with_simulated_ones_separate(lab, alice, as_user, tmp_path):
    simulated_pool(str(tmp_path), nodes=1)
    Device.objects.filter(uuid="GPU-gpu-02-1").update(checking=True)

    def groups(by: str) -> list[tuple[str, bool, int]]:
        found = shown_map(by=by).groups
        return [(each.name, each.simulated, sum(len(node.cells) for node in each.nodes)) for each in found]

    pool, sim = lab.name, Pool.objects.get(slug="sim").name
    model = Device.objects.filter(node__pool__slug="sim")[0].model
    assert groups("") == groups("anything") == [(pool, False, 10), (sim, True, 4)]
    assert groups("model") == [(H100, False, 10), (model, True, 4)]
    assert groups("state") == [("Free", False, 9), ("Being checked", False, 1), ("Free", True, 4)]
    page = as_user(alice).get("/gpus/?by=state").content.decode()
    assert '<option value="state" selected>' in page and page.count("badge sim") == 2


def test_simulated_devices_are_marked_and_counted_separately(lab, alice, as_user, tmp_path):
    simulated_pool(str(tmp_path), nodes=2)
    page = as_user(alice).get("/gpus/")
    assert "0 of 10 GPUs in use, 10 free" in text(page)
    assert "0 of 8 GPUs in use, 8 free" in text(page)
    assert page.content.decode().count("badge sim") == 2


def test_page_without_gpus_explains_how_to_add_them(local_pool, alice, as_user):
    page = text(as_user(alice).get("/gpus/"))
    assert "No GPUs" in page and "add_simulated_pool" in page


@pytest.mark.parametrize("count", [2, 125])
def test_query_count_is_constant_for_1000_devices(catalog, alice, count):
    local_pool_with(*(node_with(f"node-{number:03d}", 8) for number in range(count)))
    client = Client()
    client.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    client.get("/gpus/")
    with CaptureQueriesContext(connection) as seen:
        part = client.get("/gpus/", headers={"HX-Request": "true", "HX-Target": "gpus"})
    assert len(seen) <= 9, "\n".join(query["sql"][:120] for query in seen)
    cell = b'<a class="gpu free"' if count == 2 else b"<i class=fr>"
    assert part.content.count(cell) == count * 8
    assert len(gzip.compress(part.content, 6)) < 15_000
    assert len(client.get("/gpus/").content) < 60_000


@pytest.fixture
def hall(catalog) -> Pool:
    """72 GPUs: two racks of four nodes, and a node without a location."""
    pool = local_pool_with(*(node_with(f"n{number}", 8) for number in range(9)))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0)
    for rack, names in (("r1", "0246"), ("r2", "1357")):
        pool.nodes.filter(name__in=[f"n{number}" for number in names]).update(block="b1", rack=rack)
    FlavorFactory(slug="gpu-1", accelerator_count=1, accelerator_model=H100)
    return pool


def test_many_gpus_are_shown_by_rack_with_zoom(hall, make, alice, charlie, as_user):
    make(alice, "gpu-1", name="secret-work")
    node = Device.objects.get(allocated__active=True).node
    client = as_user(alice)
    site = client.get("/gpus/?model=" + H100).context["map"]
    (group,) = site.groups
    assert site.compact and not site.crumbs
    racks = {rack.name: [row.name for row in rack.nodes] for rack in group.racks}
    assert racks == {
        "b1/r1": ["n0", "n2", "n4", "n6"],
        "b1/r2": ["n1", "n3", "n5", "n7"],
        "Unknown rack": ["n8"],
    }
    summaries = {row.name: row.summary for row in group.nodes}
    assert summaries.pop(node.name) == "1 in use, 7 free" and set(summaries.values()) == {"8 free"}
    page = client.get("/gpus/" + group.racks[1].zoom)
    rack = page.context["map"]
    assert not rack.compact and [row.name for row in rack.groups[0].nodes] == racks["b1/r2"]
    assert [crumb.name for crumb in rack.crumbs] == ["All GPUs", hall.name, "b1/r2"]
    assert rack.filters.model == H100 and "model=NVIDIA" in rack.crumbs[0].zoom
    assert states(pool=hall.slug, rack=UNKNOWN).keys() == {"n8"}
    zoom = next(row.zoom for row in group.nodes if row.name == node.name)
    page = client.get("/gpus/" + zoom)
    assert len(page.context["map"].details) == 8 and "secret-work of alice" in text(page)
    other = text(as_user(charlie).get("/gpus/" + zoom))
    assert "another team" in other and "secret-work" not in other


def test_rack_outside_the_selection_is_ignored_with_a_note(hall):
    lost = shown_map(rack="b1/r9")
    assert lost.lost.startswith("Rack b1/r9 is not in this selection.") and lost.total == 72
    assert shown_map(rack="b1/r1", node="n1").filters == Filters(rack="b1/r1")
    # A search without matches keeps the selected rack.
    nothing = shown_map(rack="b1/r1", q="zzz")
    assert (nothing.lost, nothing.total, nothing.filters.rack) == ("", 0, "b1/r1")


def test_card_shows_holder_use_and_free_share(catalog, make, alice, charlie, as_user, tmp_path):
    pool = simulated_pool(str(tmp_path))
    of_it = {"pool": pool, "accelerator_count": 1, "cpu_milli": 100, "memory_mib": 64}
    FlavorFactory(slug="half", accelerator_milli=500, **of_it)
    workspace = make(alice, "half", name="secret-work")
    held = Device.objects.select_related("node").get(allocated__active=True)
    now_s = int(timezone.now().timestamp())
    series = DeviceSeries.objects.create(device=held, newest_s=now_s)
    DeviceMinute.objects.create(series=series, start_s=now_s - 60, measured_s=60, gpu_pct_s=60 * 37, gpu_s=60)
    url = f"/gpus/at/sim/{held.node.name}/{held.index}/card/"
    card = as_user(alice).get(url)
    assert f'href="/workspaces/{workspace.pk}/"' in card.content.decode()
    assert "Simulated" in text(card) and "secret-work of alice · 0.5 of the GPU · for " in text(card)
    assert "37 % in use now · 0.5 of the GPU free" in text(card)
    other = as_user(charlie).get(url)
    assert "another team · 0.5 of the GPU" in text(other) and "· for" not in text(other)
    assert "secret-work" not in text(other) and f"/gpus/devices/{held.pk}/" in text(other)
    assert as_user(alice).get(f"/gpus/at/sim/{held.node.name}/99/card/").status_code == 404


def test_cell_url_redirects_to_its_device(lab, alice, as_user):
    client = as_user(alice)
    assert client.get("/gpus/at/this-machine/gpu-01/3/").url == f"/gpus/devices/{device('gpu-01', 3).pk}/"
    assert client.get("/gpus/at/this-machine/gpu-01/9/").status_code == 404


def test_device_page_shows_cordon_reason_and_recovery(lab, bob, olga, as_user):
    cordons.cordon_device(
        actor=olga,
        device_id=device("gpu-01", 0).pk,
        reason="copy_gb_s 1000 GB/s is below 2412.",
        cause=CordonCause.CHECK,
        recovery="drain_and_reset",
    )
    url = f"/gpus/devices/{device('gpu-01', 0).pk}/"
    page = text(as_user(bob).get(url))
    assert "Memory copy 1000 GB/s is below 2412." in page and "Drain the node, then reset the GPU" in page
    assert "Return to service" not in page
    client = as_user(olga)
    assert "Return to service" in text(client.get(url))
    assert client.post(url, {"do": "uncordon"}).url == url
    assert not device("gpu-01", 0).cordoned


def test_operators_cordon_with_a_reason_and_members_cannot(lab, bob, olga, as_user):
    url = f"/gpus/devices/{device('gpu-01', 0).pk}/"
    assert as_user(bob).post(url, {"do": "cordon", "note": "mine"}).status_code == 403
    as_user(olga).post(url, {"do": "cordon", "note": "Fan is loud"})
    assert "Fan is loud" in text(as_user(bob).get(url))
    node = f"/gpus/nodes/{Node.objects.get(name='gpu-02').pk}/"
    as_user(olga).post(node, {"do": "cordon", "note": "Firmware"})
    assert "Firmware" in text(as_user(bob).get(node))
    as_user(olga).post(node, {"do": "uncordon"})
    assert not Node.objects.get(name="gpu-02").cordoned


def test_holders_are_visible_to_their_team_and_operators_only(lab, make, alice, charlie, olga, as_user):
    make(alice, "gpu-1", name="secret-work")
    held = Device.objects.select_related("node").get(allocated__active=True)
    for url in (f"/gpus/devices/{held.pk}/", f"/gpus/nodes/{held.node.pk}/"):
        assert "secret-work of alice" in text(as_user(olga).get(url))
        assert "secret-work" not in text(as_user(charlie).get(url))


def test_a_workspace_and_its_pool_lead_to_node_and_device(lab, make, alice, as_user):
    workspace = make(alice, "gpu-1")
    held = Device.objects.select_related("node").get(allocated__active=True)
    client = as_user(alice)
    of_node, of_device = (
        f'href="/gpus/{kind}/{pk}/"' for kind, pk in (("nodes", held.node.pk), ("devices", held.pk))
    )
    assert of_node in client.get(f"/workspaces/{workspace.pk}/").content.decode()
    pool = client.get(f"/pools/{lab.slug}/").content.decode()
    assert of_node in pool and of_device in pool
    assert f'id="device-uuid">{held.uuid}<' in client.get(f"/gpus/devices/{held.pk}/").content.decode()


def test_events_are_shown_on_their_node_only(lab, olga, as_user):
    for index in (0, 1):
        cordons.cordon_device(actor=olga, device_id=device("gpu-01", index).pk, reason=f"Fan {index}")
    services.set_cordon(actor=olga, node_id=device("gpu-02", 0).node_id, cordoned=True, reason="Firmware")
    client = as_user(olga)

    def told(url: str) -> str:
        return text(client.get(url)).split("What happened")[-1]

    page = told(f"/gpus/devices/{device('gpu-01', 0).pk}/")
    assert "Fan 0" in page and "Fan 1" not in page and "found 8 × NVIDIA H100" in page
    assert "Firmware" in told(f"/gpus/nodes/{device('gpu-02', 0).node_id}/")
    page = told(f"/gpus/nodes/{device('gpu-01', 0).node_id}/")
    assert "Firmware" not in page and "found the node gpu-01" in page


def test_partitioned_gpu_page_names_holders_of_instances(catalog, make, alice, olga, as_user):
    part = DeviceInfo(
        uuid="MIG-0", index=0, model=H100, memory_mib=9_856, kind=DeviceKind.MIG,
        parent_uuid="GPU-gpu-03-0", mig_profile="1g.10gb", mig_start=0, facts={"memory_slices": 1},
    )  # fmt: skip
    local_pool_with(node_info("gpu-03", devices=(replace(gpu("gpu-03", 0), mig_mode=True), part)))
    allocation = make(alice, name="on-a-part").allocations.get()
    allocation.devices.create(device=Device.objects.get(uuid="MIG-0"))
    page = text(as_user(olga).get(f"/gpus/devices/{device('gpu-03', 0).pk}/"))
    assert "Allocated to <a" in page and "on-a-part of alice" in page


def test_drain_asks_for_confirmation_and_notifies_users(lab, make, alice, olga, as_user, sent):
    workspace = make(alice, "gpu-1")
    run_until_ready(sent, workspace)
    node = Node.objects.get(allocations__workspace=workspace)
    url = f"/gpus/nodes/{node.pk}/drain/"
    question = text(as_user(olga).get(url))
    assert f"Drain {node.name}?" in question and "home folder" in question and 'name="note"' in question
    client = as_user(olga)
    assert client.post(url, {"note": "Firmware"}).url == f"/gpus/nodes/{node.pk}/"
    said = text(client.get(f"/gpus/nodes/{node.pk}/"))
    assert f"{node.name} is cordoned; 1 workspace is still there, until" in said and "Firmware" in said
    # While in use it can be repeated; afterwards there is nothing to drain.
    assert url in said
    workspace = Workspace.objects.get(pk=workspace.pk)
    assert workspace.state == State.RUNNING and preempt_at(workspace) is not None
    assert Node.objects.get(pk=node.pk).cordoned


def test_page_explains_sharing_of_real_gpus_only(catalog, make, alice, as_user, tmp_path):
    """Simulated GPUs run no processes."""
    simulated_pool(str(tmp_path))
    local_pool_with(node_info(gpus=1, provides=(PROVIDES_SHARES,)))
    Pool.objects.update(hand_out_max_age_hours=0)
    words = "Processes that exceed their share of memory are ended."
    FlavorFactory(slug="half", accelerator_count=1, accelerator_milli=500)
    of_it = {"pool": Pool.objects.get(slug="sim"), "cpu_milli": 100, "memory_mib": 64}
    FlavorFactory(slug="sim-half", accelerator_count=1, accelerator_milli=500, **of_it)
    client = as_user(alice)
    for slug, told in (("half", True), ("sim-half", False)):
        assert (words in text(client.get(f"/workspaces/new/?template=jupyterlab&flavor={slug}"))) is told
        made = make(alice, slug, name=slug)
        assert (words in text(client.get(f"/workspaces/{made.pk}/"))) is told
        held = Device.objects.get(allocated__allocation__workspace=made)
        assert (words in text(client.get(f"/gpus/devices/{held.pk}/"))) is told


def test_every_state_has_a_distinct_look():
    assert set(LOOKS) == set(DeviceState)
    assert len({look.glyph for look in LOOKS.values()}) == len(LOOKS)
    assert len({gpu_map.code_of(state) for state in DeviceState}) == len(DeviceState)


def test_shared_gpus_are_marked_as_not_isolated_everywhere(catalog, make, alice, as_user, tmp_path):
    pool = simulated_pool(str(tmp_path))
    of_it = {"pool": pool, "accelerator_count": 1, "cpu_milli": 100, "memory_mib": 64}
    FlavorFactory(slug="half", accelerator_milli=500, **of_it)
    FlavorFactory(slug="gpu-1", **of_it)
    client, words = as_user(alice), "GPU shares are not isolated"
    assert words in text(client.get("/workspaces/new/?template=jupyterlab&flavor=half"))
    assert words not in text(client.get("/workspaces/new/?template=jupyterlab&flavor=gpu-1"))
    first = make(alice, "half", name="first")
    held = Device.objects.get(allocated__active=True)
    assert words in text(client.get(f"/gpus/devices/{held.pk}/"))
    page = text(client.get(f"/workspaces/{first.pk}/"))
    assert words in page
    assert "(0.5 of one, not isolated)" in page
    # Two workspaces use all of it.
    make(alice, "half", name="second")
    assert held.allocated.filter(active=True).count() == 2
    assert words in text(client.get(f"/gpus/devices/{held.pk}/"))
    whole = make(alice, "gpu-1", name="whole")
    assert words not in text(client.get(f"/workspaces/{whole.pk}/"))
    other = Device.objects.get(allocated__allocation__workspace=whole)
    assert words not in text(client.get(f"/gpus/devices/{other.pk}/"))
    for slug, isolated in (("half", False), ("gpu-1", True)):
        flavor = client.get(f"/api/v1/flavors/{slug}").json()
        assert flavor["resources"]["accelerators"]["isolated"] is isolated
