"""The overview: its numbers equal those of other pages, and its queries do not grow."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.catalog.environments import services as environments
from portal.catalog.environments.models import EnvironmentVersion
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, DeviceSeries, Node
from portal.reports import state_samples
from portal.scheduling import selectors as queue
from portal.web.home.presenters import overview
from portal.web.inbox import selectors as inbox
from portal.workspaces.models import QueueEntry, Workspace
from tests.factories import PASSWORD, WorkspaceFactory, local_pool_with, node_info
from tests.ui.test_browser import DESKTOP, NARROW, PHONE, overflows, too_small, violations

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab(catalog, team, alice):
    """3 nodes with 2 GPUs: 4 idle ones of workspaces, one failed, one of an offline node."""
    pool = local_pool_with(*(node_info(f"gpu-{n}", gpus=2) for n in range(3)), slug="lab")
    now_s = int(time.time())
    for number, device in enumerate(Device.objects.select_related("node").order_by("node__name", "index")):
        if number < 4:
            hold(device, team, alice, pool, idle_since_s=now_s - 3600 * (number + 1))
    Device.objects.filter(node__name="gpu-2", index=0).update(healthy=False, health_note="XID 79")
    return pool


def hold(device: Device, team, owner, pool, *, idle_since_s: int) -> Workspace:
    workspace = WorkspaceFactory(
        name=f"w-{device.uuid.lower()}", team=team, owner=owner, pool=pool, state="running", generation=1
    )
    allocation = Allocation.objects.create(
        workspace=workspace, node=device.node, generation=1, cpu_milli=1, memory_mib=1,
        granted_at=timezone.now() - timedelta(days=2),
    )  # fmt: skip
    AllocatedDevice.objects.create(allocation=allocation, device=device)
    DeviceSeries.objects.create(device=device, newest_s=int(time.time()), idle_since_s=idle_since_s)
    return workspace


def pending(team, owner, code: str, *, outcome: str = "queued") -> Workspace:
    workspace = WorkspaceFactory(team=team, owner=owner, state="pending")
    reason = {"code": code, "params": {"node": "gpu-0"}} if code else {}
    QueueEntry.objects.filter(pk=workspace.pk).update(reason=reason, outcome=outcome)
    return workspace


def test_numbers_equal_those_of_map_and_inbox(lab, as_user, olga):
    # Its GPUs are allocated, so they keep their last known state.
    Node.objects.filter(name="gpu-1").update(online=False)
    state_samples.run()
    browser = as_user(olga)
    context = browser.get("/overview/").context
    states, legend = context["gpus"].states, browser.get("/gpus/").context["map"].legend
    shown = {str(entry.state): entry.count for entry in legend}
    assert (states.idle, states.free, states.total) == (4, 1, 6)
    assert states.idle == shown["idle"] and states.free == shown["free"]
    assert states.out_of_service == shown["failed"] == 1
    assert context["gpus"].plot is not None and not context["gpus"].simulated
    needs = {need.text: need.count for need in context["needs"]}
    assert needs == {"Failed or missing GPUs": 1, "Offline nodes": 1}
    assert sum(needs.values()) == inbox.count(olga) and len(context["items"]) == 2


def test_failed_environments_need_attention(lab, as_user, olga):
    environment = environments.create(
        actor=olga, team=None, name="Torch", source_kind="packages", source="torch"
    )
    EnvironmentVersion.objects.filter(environment=environment).update(state="failed")
    (need,) = [need for need in as_user(olga).get("/overview/").context["needs"] if "Torch" in need.text]
    assert (need.count, need.url) == (1, "/environments/")


def test_waiting_requests_are_grouped_by_code_and_linked_to_the_queue(lab, team, alice, as_user, olga):
    for code in ("home_moving", "home_moving", ""):
        pending(team, alice, code)
    above = pending(team, alice, "team_limit", outcome="needs_approval")
    groups = {group.code: group.count for group in queue.waiting_by_reason()}
    assert groups == {"home_moving": 2, "": 1, "needs_approval": 1}
    browser = as_user(olga)
    page = browser.get("/overview/").text
    assert 'href="/queue/?reason=home_moving"' in page
    assert list(queue.filtered(queue.waiting(), reason="needs_approval")) == [above]
    assert browser.get("/queue/?reason=cohort").text.count("No matching workspaces") == 1
    rows = browser.get("/api/v1/queue?reason=home_moving").json()["results"]
    assert len(rows) == 2


def test_failed_starts_lead_to_the_failed_workspaces_of_all(team, alice, as_user, olga):
    WorkspaceFactory(owner=alice, team=team, state="failed", name="broken")
    browser = as_user(olga)
    [link] = re.findall(r'id="to-failed" href="([^"]+)"', browser.get("/overview/").text)
    assert "broken" in browser.get(link).text


def test_longest_idle_gpus_are_first_with_one_action(lab, as_user, olga, una):
    rows = as_user(olga).get("/overview/").context["idle"]
    assert [row.name for row in rows] == [
        f"GPU {index} of gpu-{node}" for node, index in ((1, 1), (1, 0), (0, 1), (0, 0))
    ]
    assert rows[0].stop_url == f"/workspaces/{rows[0].workspaces[0].pk}/stop/"
    assert not overview.idle_gpus(una, overview.counting.enabled_devices(), timezone.now())[0].stop_url


def test_simulated_gpus_are_marked(pool, as_user, olga):
    page = as_user(olga).get("/overview/")
    assert page.context["gpus"].simulated and page.context["gpus"].states.total == 8
    assert "All GPUs of this site are simulated" in page.text and "never idle" in page.text
    assert "No samples yet" in page.text
    local_pool_with(node_info("real", gpus=1), slug="lab")
    gpus = as_user(olga).get("/overview/").context["gpus"]
    assert not gpus.simulated and gpus.states.total == 1


def test_queries_do_not_grow(lab, team, alice, as_user, olga):
    browser = as_user(olga)
    browser.get("/overview/")

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert browser.get("/overview/").status_code == 200
        return len(queries)

    pending(team, alice, "cohort")
    few = asked()
    local_pool_with(*(node_info(f"more-{n}", gpus=4) for n in range(4)), slug="more")
    for device in Device.objects.filter(node__pool__slug="more").select_related("node__pool"):
        hold(device, team, alice, device.node.pool, idle_since_s=int(time.time()) - 9000)
        pending(team, alice, "cohort")
    Device.objects.filter(node__pool__slug="more", index=3).update(healthy=False)
    assert asked() == few


def test_overview_is_the_start_page_of_operators(client, olga, alice, team):

    for user, landing in ((olga, "/overview/"), (alice, "/")):
        form = {"username": user.username, "password": PASSWORD, "next": "/"}
        assert client.post("/sign-in/", form)["Location"] == landing
        client.post("/sign-out/")
    form = {"username": olga.username, "password": PASSWORD, "next": "/queue/"}
    assert client.post("/sign-in/", form)["Location"] == "/queue/"


@pytest.mark.browser
@pytest.mark.thorough("axe on pages with plots; `make test` draws the plots of a device")
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators")
def test_pages_with_plots_are_accessible_and_fit(visit, transactional_db, lab, team, alice, olga):
    state_samples.run()
    pending(team, alice, "home_moving")
    workspace = Workspace.objects.get(allocations__node__name="gpu-0", allocations__devices__device__index=0)
    node = Node.objects.get(name="gpu-0")
    paths = (
        *("/overview/", "/pools/lab/", "/teams/vision/use/"),
        *(f"/gpus/nodes/{node.pk}/use/", f"/workspaces/{workspace.pk}/"),
    )
    page = visit(olga, viewport=DESKTOP)
    wrong: list[str] = []
    for path in paths:
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.set_viewport_size(DESKTOP)
            page.goto(path)
            page.wait_for_load_state("networkidle")
            wrong += [f"{path}, {theme}: {line}" for line in violations(page) + too_small(page)]
        for size in (PHONE, NARROW):
            page.set_viewport_size(size)
            wrong += [f"{path}: wider than {size['width']} px, {font} font" for font in overflows(page)]
    assert not wrong, "\n".join(wrong)
