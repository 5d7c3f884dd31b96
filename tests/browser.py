"""One headless Chromium per test process."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.populate import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium_path() -> str | None:
    """The path of Chromium or Chrome. Debian's headless shell comes first: it takes less processor time."""
    named = os.environ.get("BERTH_TEST_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium for the whole run; skips if not installed."""
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium on this machine (BERTH_TEST_CHROMIUM may name one)")
    from playwright.sync_api import expect, sync_playwright

    # Playwright's loop runs in the test's thread, which Django takes for an asynchronous context.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    # The default of 5 s is too short on a busy machine.
    expect.set_options(timeout=30_000)
    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
            yield chromium
            chromium.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def sign_in(page: Page, url: str, name: str) -> None:
    """Sign a user of `tests.populate`, or the administrator, in with the form of the portal at `url`."""
    page.goto(f"{url}/")
    page.fill("#id_username", name)
    page.fill("#id_password", PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    # Operators and administrators land on the overview.
    page.wait_for_url(re.compile(rf"^{re.escape(url)}/(overview/)?$"))
