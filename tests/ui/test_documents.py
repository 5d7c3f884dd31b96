"""Documents in a real browser: search while typing, by keyboard, without JavaScript."""

from __future__ import annotations

from typing import Any

import pytest

from tests.suite.choice import quick_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]


def test_search_updates_while_typing_and_opens_with_enter(visit: Any, alice: Any) -> None:
    page = visit(alice)
    page.goto("/docs/")
    page.get_by_label("Search the documentation").fill("gpu")
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/search/?q=gpu")
    field = page.get_by_label("Search the documentation")
    field.fill("why is this gpu cordoned")
    link = page.get_by_role("link", name="Why is this GPU cordoned, failed or offline?")
    link.wait_for()
    page.wait_for_url("**/docs/search/?q=why*cordoned")
    page.wait_for_function("field => field === document.activeElement", arg=field.element_handle())
    assert page.locator("#found mark").count() > 0
    link.click()
    page.wait_for_url("**/docs/troubleshooting/#why-is-this-gpu-cordoned-failed-or-offline")
    assert page.locator(":target").inner_text().startswith("Why is this GPU cordoned")


@pytest.mark.thorough("test_browser has pages without JavaScript")
def test_search_works_without_javascript(visit: Any, alice: Any) -> None:
    page = visit(alice, java_script_enabled=False)
    page.goto("/docs/search/")
    page.get_by_label("Search the documentation").fill("restore a backup")
    page.get_by_role("button", name="Search").click()
    assert "Restore" in page.locator("#found").inner_text()
    page.goto("/docs/quotas/")
    page.get_by_role("navigation", name="On this page").get_by_role("link", name="For approvers").click()
    assert page.url.endswith("/docs/quotas/#for-approvers")
    page.get_by_role("navigation", name="Previous and next page").get_by_role("link").last.click()
    assert page.url.endswith("/docs/cohorts/")


@pytest.mark.parametrize("theme", quick_of(["light", "dark"], ["light"], "the same pages in the dark"))
def test_long_pages_fit_a_phone(visit: Any, alice: Any, theme: str) -> None:
    page = visit(alice, viewport={"width": 390, "height": 844}, color_scheme=theme)
    for name in ("settings", "reason-codes", "cli", "operations", "placement"):
        page.goto(f"/docs/{name}/")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, (name, width)
