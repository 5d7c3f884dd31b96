"""Interrupted forms, lists after going back, and printing: no typed text or selection is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.sessions.models import Session

from portal.fleet.inventory.models import Node
from tests.factories import PASSWORD, UserFactory, local_pool_with, node_info

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]


@pytest.fixture
def node(catalog: None) -> Node:
    return local_pool_with(node_info("gpu-1", gpus=1)).nodes.get()


def sign_in(page: Page, name: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_typed_text_survives_the_end_of_the_session(
    visit: Callable[..., Page], olga: Any, node: Node
) -> None:
    page = visit(olga)
    form = f"/gpus/nodes/{node.pk}/location/"
    page.goto(form)
    page.get_by_label("Rack").fill("r07")
    Session.objects.all().delete()
    # A refreshing part detects the end of the session first.
    page.evaluate("htmx.trigger('#to-decide', 'sse:changed')")
    sign_in(page, "olga")
    page.get_by_text("Your entries are back.").wait_for()
    assert page.url.endswith(form) and page.get_by_label("Rack").input_value() == "r07"
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Location of gpu-1 saved.").wait_for()
    # Saved entries are not restored twice.
    page.goto(form)
    assert page.get_by_text("Your entries are back.").count() == 0
    # A late form, and a change by another user meanwhile, which is not overwritten.
    page.get_by_label("Block").fill("b1")
    Session.objects.all().delete()
    Node.objects.update(rack="r99")
    page.get_by_role("button", name="Save").click()
    sign_in(page, "olga")
    page.get_by_text("Your entries are back.").wait_for()
    page.get_by_role("button", name="Save").click()
    page.get_by_role("alert").first.wait_for()
    assert page.get_by_label("Block").input_value() == "b1"
    node.refresh_from_db()
    assert node.location == ("r99", "")


def test_stale_tab_shows_the_conflict_and_keeps_its_text(
    visit: Callable[..., Page], olga: Any, node: Node
) -> None:
    page = visit(olga)
    form = f"/gpus/nodes/{node.pk}/location/"
    page.goto(form)
    other_tab = page.context.new_page()
    other_tab.goto(form)
    other_tab.get_by_label("Rack").fill("r07")
    other_tab.get_by_role("button", name="Save").click()
    other_tab.get_by_text("Location of gpu-1 saved.").wait_for()
    page.bring_to_front()
    page.get_by_label("Block").fill("b2")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("alert").first.wait_for()
    assert page.get_by_label("Block").input_value() == "b2"
    node.refresh_from_db()
    assert node.location == ("r07", "")


def test_saved_form_text_is_not_shown_to_another_account(
    visit: Callable[..., Page], olga: Any, node: Node
) -> None:
    UserFactory(username="oscar", is_operator=True)
    page = visit(olga)
    form = f"/gpus/nodes/{node.pk}/location/"
    page.goto(form)
    page.get_by_label("Rack").fill("r07")
    Session.objects.all().delete()
    page.get_by_role("button", name="Save").click()
    sign_in(page, "oscar")
    page.wait_for_url(f"**{form}")
    assert page.get_by_label("Rack").input_value() == ""
    assert page.evaluate("sessionStorage.getItem('berth-draft')") is None


def test_back_button_restores_filters_and_print_hides_the_menu(
    visit: Callable[..., Page], olga: Any, node: Node, make: Any, alice: Any
) -> None:
    workspace = make(alice, name="w" * 60)
    from playwright.sync_api import expect

    page = visit(olga, reduced_motion="reduce")
    for path, first, second in (("/gpus/", "free", "allocated"), ("/workspaces/", "running", "stopped")):
        page.goto(path)
        for state in (first, second):
            page.get_by_label("State", exact=True).select_option(state)
            page.wait_for_url(f"**{path}?*state={state}*")
        page.goto(f"/workspaces/{workspace.pk}/")
        for state in (second, first):
            page.go_back()
            page.wait_for_url(f"**{path}?*state={state}*")
            expect(page.get_by_label("State", exact=True)).to_have_value(state)
    page.emulate_media(media="print")
    for path in (f"/workspaces/{workspace.pk}/", "/reports/gpu-use/", "/docs/gpus/"):
        page.goto(path)
        assert page.locator(".side:visible, .bar-phone:visible, .foot:visible, .btn:visible").count() == 0, (
            path
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        moving = "() => document.getAnimations().filter(one => one.playState === 'running').length"
        assert page.evaluate(moving) == 0, path
