"""The table in a browser: selection and focus survive a refresh, and back restores filters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from portal.people.accounts.models import User
from portal.workspaces.models import Workspace
from tests.ui.conftest import served as served
from tests.ui.conftest import visit as visit
from tests.ui.conftest import workspace_in as workspace_in
from tests.ui.test_browser import PHONE, too_small, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.apart,
    pytest.mark.browser,
    # WhiteNoise reads files synchronously, about which Django's ASGI handler warns.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]
Make = Callable[..., Workspace]


def test_selection_survives_a_refresh_and_opens_a_preview(
    visit: Visit, alice: User, bob: User, workspace_in: Make
) -> None:
    for name in ("alpha", "beta", "gamma"):
        workspace_in("running", bob, name=name)
    page = visit(alice)
    page.goto("/workspaces/?sort=name")
    page.get_by_label("Select beta of bob").check()
    page.get_by_text("Selected: 1").wait_for()
    page.locator("#act-stop").focus()
    workspace_in("running", bob, name="delta")
    page.evaluate("htmx.trigger('#list', 'sse:changed')")
    page.get_by_role("link", name="delta").wait_for()
    assert page.get_by_label("Select beta of bob").is_checked()
    page.wait_for_function("document.activeElement.id === 'act-stop'")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Stop 1 workspace?").wait_for()
    assert violations(page) == []
    assert too_small(page) == []
    page.get_by_role("link", name="Cancel").click()
    page.get_by_label("Select all on this page").check()
    page.get_by_text("Selected: 4").wait_for()


def test_back_button_restores_the_filters(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace_in("running", alice, name="alpha")
    workspace_in("stopped", alice, name="beta")
    page = visit(alice)
    page.goto("/workspaces/")
    page.get_by_label("State").select_option("stopped")
    page.get_by_role("link", name="alpha").wait_for(state="detached")
    page.get_by_role("link", name="beta").click()
    page.get_by_role("heading", name="beta").wait_for()
    page.go_back()
    page.wait_for_url(re.compile(r"state=stopped"))
    page.get_by_role("link", name="beta").wait_for()
    assert page.get_by_label("State").input_value() == "stopped"
    page.go_back()
    page.get_by_role("link", name="alpha").wait_for()
    assert page.get_by_label("State").input_value() == ""


def test_everything_works_without_javascript_on_a_phone(
    visit: Visit, alice: User, bob: User, workspace_in: Make
) -> None:
    row = workspace_in("running", bob, name="a" * 60)
    page = visit(alice, java_script_enabled=False, viewport=PHONE)
    page.goto("/workspaces/?owner=bob")
    page.get_by_label(re.compile("Select a+ of bob")).check()
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("button", name="Stop 1 workspace").click()
    page.get_by_role("heading", name="Done: 1 of 1").wait_for()
    row.refresh_from_db()
    assert row.state == "stopping"
    page.get_by_role("link", name="Back to the list").click()
    assert "owner=bob" in page.url
