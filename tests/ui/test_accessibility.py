"""Every page of the permission table in a browser: axe, both themes, phone to desktop, zoom of 200 %."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.broker import Broker
from tests.permissions.stage import set_up
from tests.permissions.table import ROWS
from tests.ui.test_browser import (
    COLOUR_RULES,
    DESKTOP,
    NARROW,
    PHONE,
    Visit,
    overflows,
    too_small,
    violations,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.apart,
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
    pytest.mark.thorough("axe on a hundred pages; `make test` has sign-in and errors"),
]
ZOOMED = {"width": DESKTOP["width"] // 2, "height": DESKTOP["height"] // 2}
"""The window in CSS pixels at a zoom of 200 %."""
NO_PAGES = ("api/", "agent/", "nodes/", "scim/", "gateway/", "sign-out/", "metrics", "healthz")


def paths(stage: Any) -> list[str]:
    """The paths of all pages."""
    return [
        stage.url(row.route)
        for row in ROWS
        if row.method == "GET" and not row.route.startswith(NO_PAGES) and "events/" not in row.route
    ]


def shown(page: Page, path: str) -> bool:
    """Open the page; return whether it is one, and not a file, a part or a redirect to another page."""
    answer = page.request.get(path, max_redirects=0)
    if answer.status != 200 or "text/html" not in answer.headers.get("content-type", ""):
        return False
    page.goto(path)
    return page.locator("html").get_attribute("lang") is not None


@pytest.mark.parametrize("username", ["ada", "alice"])
def test_every_page_of_the_table_is_accessible(
    visit: Visit, sent: Broker, providers: Any, username: str
) -> None:
    stage = set_up(sent)
    # Colours change at once then, not over some frames.
    page = visit(stage.people[username], color_scheme="light", reduced_motion="reduce")
    wrong: list[str] = []
    looked = 0
    for path in paths(stage):
        page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
        if not shown(page, path):
            continue
        looked += 1
        wrong += [f"{path}: {line}" for line in violations(page) + too_small(page)]
        page.emulate_media(color_scheme="dark")
        wrong += [f"{path}, dark: {line}" for line in violations(page, COLOUR_RULES)]
        page.emulate_media(color_scheme="light")
        for size in (PHONE, ZOOMED, NARROW):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            wrong += [f"{path}, {size['width']} px wide: {line}" for line in violations(page)]
            wrong += [f"{path}: wider than {size['width']} px, {font} font" for font in overflows(page)]
    print(f"{looked} pages as {username}")
    assert looked > 70
    assert not wrong, "\n".join(wrong)
