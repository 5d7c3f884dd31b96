"""GPU pages in a real browser: accessible, on a phone, by keyboard, live."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from portal.fleet.inventory import cordons
from portal.fleet.inventory.models import CordonCause, Device, Node
from portal.gpu_checks import results, runs
from portal.gpu_checks.models import GpuCheckRun
from tests.broker import Broker
from tests.factories import node_info
from tests.gpu_checks.helpers import answer, checked_pool, commands, only
from tests.ui.test_browser import COLOUR_RULES, DESKTOP, NARROW, PHONE, overflows, too_small, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from portal.people.accounts.models import User

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]


@pytest.fixture
def devices(catalog: None, olga: User, sent: Broker) -> list[Device]:
    """Two nodes of four: one passed, one degraded, one failed, one being checked, one cordoned."""
    checked_pool(node_info("gpu-01", gpus=4), node_info("gpu-02", gpus=4))
    found = list(Device.objects.order_by("node__name", "index"))
    for device, wrong in zip(found, ((), ("slow_memory",), ("xid79",)), strict=False):
        runs.request_check(actor=olga, device_id=device.pk)
        answer(only(sent), *wrong)
    runs.request_check(actor=olga, device_id=found[0].pk)
    answer(only(sent))
    runs.request_check(actor=olga, device_id=found[3].pk)
    cordons.cordon_device(actor=olga, device_id=found[4].pk, reason="Fan is loud", cause=CordonCause.OPERATOR)
    return found


@pytest.mark.thorough("more pages; `make test` has those of test_browser")
def test_every_page_is_accessible_and_fits(visit: Visit, olga: Any, devices: list[Device]) -> None:
    page = visit(olga)
    wrong: list[str] = []
    paths = ["/gpus/", f"/gpus/nodes/{devices[0].node_id}/"]
    paths += [f"/gpus/devices/{devices[number].pk}/" for number in (0, 2)]
    paths += [f"/gpus/checks/{run.pk}/" for run in GpuCheckRun.objects.all()[:3]]
    for path in paths:
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="light")
        page.goto(path)
        wrong += [f"{path}: {line}" for line in violations(page) + too_small(page)]
        for size in (PHONE, NARROW):
            page.set_viewport_size(size)
            if overflows(page):
                wrong.append(f"{path}: wider than {size['width']} px")
        page.emulate_media(color_scheme="dark")
        page.goto(path)
        wrong += [f"{path} in the dark: {line}" for line in violations(page, COLOUR_RULES)]
    assert not wrong, "\n".join(wrong)


def test_map_is_navigated_by_arrow_keys_and_shows_check_progress(
    visit: Visit, olga: Any, devices: list[Device], sent: Broker
) -> None:
    commands(sent)
    page = visit(olga)
    page.goto("/gpus/")
    first = page.locator("a.gpu").first
    first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "End", "ArrowUp", "Home"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "GPU 0 free"
    assert page.locator("a.gpu[tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="GPU 0 of gpu-01").wait_for()
    page.get_by_label("Level", exact=True).select_option("standard")
    page.get_by_role("button", name="Check again").click()
    page.get_by_text("Waiting for the node").wait_for()
    command = only(sent)
    results.apply_progress(
        run_id=command.run,
        lease=command.lease,
        progress={"phase": "start", "test": "address", "done": 2, "total": 9},
    )
    page.get_by_text("Test 3 of 9").wait_for()
    answer(command)
    page.get_by_text("All tests passed.").wait_for()
    assert page.locator("#check").get_attribute("hx-get") is None


def test_automatic_refresh_keeps_the_selection(visit: Visit, olga: Any, devices: list[Device]) -> None:
    page = visit(olga)
    page.clock.install()
    page.goto("/gpus/")
    page.get_by_label("State", exact=True).select_option("cordoned")
    page.wait_for_url("**/gpus/?*state=cordoned*")
    assert page.locator("#gpus a.gpu").count() == 1
    Device.objects.filter(pk=devices[5].pk).update(cordoned=True, cordon_cause=CordonCause.OPERATOR)
    page.clock.fast_forward(11_000)
    page.get_by_role("link", name="GPU 1 cordoned").wait_for()
    assert page.locator("#gpus a.gpu").count() == 2


@pytest.fixture
def hall(catalog: None) -> None:
    """72 GPUs in two racks, enough for small cells on the map."""
    checked_pool(*(node_info(f"gpu-{number}", gpus=8) for number in range(9)))
    Node.objects.update(rack="r1")
    Node.objects.filter(name__in=("gpu-7", "gpu-8")).update(rack="r2")


def test_small_cells_are_navigable_labelled_and_zoomable(visit: Visit, olga: Any, hall: None) -> None:
    page = visit(olga)
    page.goto("/gpus/")
    assert violations(page) == [] and too_small(page) == []
    cells = page.locator(".rack i")
    assert cells.count() == 72 and page.locator(".rack i[tabindex='0']").count() == 1
    cells.first.focus()
    # From the last node of the first rack, down moves to the second rack.
    for key in ("ArrowRight", *["ArrowDown"] * 7):
        page.keyboard.press(key)
    card = page.locator("#gpu-card")
    card.get_by_text("GPU 1 of gpu-7").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "GPU 1 free"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "View GPU"
    page.keyboard.press("Escape")
    assert card.is_hidden()
    page.keyboard.press("Enter")
    page.wait_for_url("**/gpus/?pool=*&node=gpu-7#gpu-1")
    page.locator("tr:target").get_by_role("link", name="GPU 1").wait_for()
    page.go_back()
    page.get_by_role("link", name="r2", exact=True).click()
    page.wait_for_url("**/gpus/?pool=*&rack=r2")
    assert page.locator("a.gpu").count() == 16
    page.get_by_label("State", exact=True).select_option("free")
    page.wait_for_url("**/gpus/?*rack=r2*")
    page.set_viewport_size(PHONE)
    page.goto("/gpus/")
    assert not overflows(page)
