"""Forms in a browser: validation during input, and values shown by collapsed options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from portal.people.accounts.models import Team, User

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]


def test_invalid_field_is_marked(visit: Visit, alice: User, team: Team) -> None:
    page = visit(alice)
    page.goto("/catalog/templates/new/?team=vision&preset=web-app")
    page.get_by_label("Name", exact=True).fill("Plots")
    page.get_by_label("Slug", exact=True).fill("plots")
    page.locator("summary", has_text="App").click()
    field = page.get_by_label("Start path")
    field.fill("//elsewhere")
    field.press("Tab")
    page.locator("#id_open_path[aria-invalid=true]").wait_for()
    assert "not a valid app path" in page.locator("#id_open_path_error").inner_text()
    assert "1 set" in page.locator("#set-app").inner_text()
    assert "Plots" in page.locator("#form-preview").inner_text()
    field.fill("/")
    field.press("Tab")
    page.locator("#id_open_path:not([aria-invalid])").wait_for()
    assert page.locator("#set-app").inner_text() == "Defaults"
    assert page.locator(".problem").count() == 0


def test_options_show_a_repository_name_without_its_address(
    visit: Visit, alice: User, team: Team, local_pool: object
) -> None:
    page = visit(alice)
    page.goto("/workspaces/new/")
    page.locator("#options > summary").click()
    with page.expect_response("**/workspaces/new/?**") as answered:
        page.locator("#git-url").fill("https://me:hunter2@git.example/a/b")
        page.locator("#git-url").press("Tab")
    assert "hunter2" not in answered.value.url
    page.locator("#options-set", has_text="a Git repository").wait_for()
