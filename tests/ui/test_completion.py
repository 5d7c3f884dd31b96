"""A slug field with too many choices for a list: completion, and without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from portal.catalog.environments.models import Environment
from portal.people.accounts.models import Team, User
from tests.catalog_pages.test_many_entries import environments

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]
PROPOSED = "#{}-proposed option"


def test_typed_text_is_completed_and_kept(visit: Visit, olga: User, team: Team, local_pool: object) -> None:
    environments(260)
    page = visit(olga)
    page.goto("/environments/tools-0001/edit/")
    options = page.locator(PROPOSED.format("id_successor"))
    assert options.count() == 200
    field = page.get_by_label("Successor")
    field.focus()
    with page.expect_response("**/catalog/completions/environments/**"):
        page.keyboard.type("0259")
    page.locator(PROPOSED.format("id_successor") + ":only-child").wait_for(state="attached")
    assert options.get_attribute("value") == "tools-0259"
    assert "0259" in field.input_value()
    assert page.url.endswith("/environments/tools-0001/edit/")
    field.fill("tools-0259")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/environments/tools-0001/")
    assert Environment.objects.get(slug="tools-0001").successor.slug == "tools-0259"


def test_workspace_form_updates_with_typed_choices(
    visit: Visit, bob: User, team: Team, catalog: object, local_pool: object
) -> None:
    environments(260)
    page = visit(bob)
    page.goto("/workspaces/new/")
    page.locator("#options > summary").click()
    field = page.get_by_label("Environment")
    field.focus()
    page.keyboard.type("tools-0259")
    with page.expect_response(lambda answer: "/workspaces/new/" in answer.url):
        page.keyboard.press("Tab")
    page.wait_for_url("**environment=tools-0259**")
    assert field.input_value() == "tools-0259"
    field.focus()
    field.fill("nothing-such")
    with page.expect_response(lambda answer: "/workspaces/new/" in answer.url):
        page.keyboard.press("Tab")
    page.get_by_text("Environment not found").wait_for()
    assert field.input_value() == "nothing-such"


@pytest.mark.thorough("test_browser has pages without JavaScript")
def test_slug_field_works_without_javascript(visit: Visit, olga: User) -> None:
    environments(260)
    page = visit(olga, java_script_enabled=False)
    page.goto("/environments/tools-0001/edit/")
    page.get_by_label("Successor").fill("tools-0259")
    page.get_by_role("button", name="Save").click()
    assert Environment.objects.get(slug="tools-0001").successor.slug == "tools-0259"
