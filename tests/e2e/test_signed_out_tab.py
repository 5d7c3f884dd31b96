"""A notebook whose session ends shows what to do, and works again after sign-in."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.e2e.test_browser import DESKTOP, START_LIMIT_MS, Person, person, run_a_cell
from tests.instance import Berth
from tests.populate import PASSWORD

__all__ = ["person"]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.browser,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough(
        "a whole Berth with a browser; `make test` has the answers in tests/workspaces/gateway"
    ),
]


def test_unsaved_work_is_saved_after_sign_in_in_another_tab(
    berth: Berth, person: Callable[..., Person]
) -> None:
    ada = person("signed-out", color_scheme="light", **DESKTOP)
    ada.sign_in()
    ada.start_new("jupyterlab")
    ada.arrive()
    run_a_cell(ada, "kept.ipynb")
    page = ada.page
    cells = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .cm-content")
    cells.last.click()
    page.keyboard.type("x = 'unsaved'")

    # Signing out of the portal ends her sessions in all workspaces.
    portal = ada.context.new_page()
    portal.goto(berth.url)
    portal.locator("form[action$='/sign-out/'] button").first.evaluate(
        "button => button.form.requestSubmit()"
    )
    portal.wait_for_url(re.compile("/sign-in/"))
    page.bring_to_front()
    page.keyboard.press("Control+s")
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("You are signed out. Unsaved changes are still in this tab.")
    ada.shot("dialog")
    dialog.get_by_role("button").click()
    again = page.get_by_role("link", name="Sign in again in another tab")
    again.wait_for(timeout=START_LIMIT_MS)
    ada.shot("bar")

    with ada.context.expect_page() as opened:
        again.click()
    other = opened.value
    other.fill("#id_username", "ada")
    other.fill("#id_password", PASSWORD)
    other.get_by_role("button", name="Sign in", exact=True).click()
    other.get_by_role("heading", name="You are signed in again").wait_for()
    other.screenshot(path=ada.shot_path("again"))
    other.close()

    page.bring_to_front()
    expect(again).to_have_count(0, timeout=START_LIMIT_MS)
    cells.last.click()
    page.keyboard.press("Control+s")
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    saved = berth.home / "homes" / "lab" / "ada" / "kept.ipynb"
    page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')", timeout=START_LIMIT_MS)
    assert "unsaved" in saved.read_text()
    # The kernel is reconnected, with its variables.
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("x + '!'")
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output").last).to_have_text("'unsaved!'", timeout=START_LIMIT_MS)
