"""A user in a browser, whose clicks, fields and pages are counted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.browser import sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Locator, Page, Request, Response, ViewportSize

DESKTOP: ViewportSize = {"width": 1280, "height": 820}
PHONE: ViewportSize = {"width": 390, "height": 844}
LIMIT_MS = 60_000
CLIENT_ERROR = 400


@dataclass(slots=True)
class Journey:
    """Cost of one journey from the first page after sign-in. Seconds include the portal's response times."""

    name: str
    username: str
    clicks: int = 0
    fields: int = 0
    pages: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    """Script errors, responses of 400 and above, and pages wider than the screen."""


class Visitor:
    """Acts like a user: by visible names. Every action waits until its element is ready."""

    def __init__(self, page: Page, journey: Journey) -> None:
        self.page, self.journey = page, journey

    def click(self, name: str | re.Pattern[str], *, role: str = "", within: str = "body") -> None:
        """Click the first visible link, button or disclosure of that name."""
        scope = self.page.locator(within)
        roles = (role,) if role else ("button", "link")
        element = scope.get_by_role(roles[0], name=name, exact=isinstance(name, str))  # type: ignore[arg-type]
        for other in roles[1:]:
            element = element.or_(scope.get_by_role(other, name=name, exact=isinstance(name, str)))  # type: ignore[arg-type]
        self.press(element.first)

    def press(self, locator: Locator) -> None:
        """Click an element."""
        self.journey.clicks += 1
        locator.click()
        self.record_overflow()

    def fill(self, selector: str, text: str) -> None:
        """Type into a field; reaching it by keyboard does not count as a click."""
        self.journey.fields += 1
        self.page.fill(selector, text)

    def choose(self, selector: str, value: str) -> None:
        """Choose from a list: two clicks."""
        self.journey.clicks += 2
        self.page.select_option(selector, value)

    def wait_for_text(self, text: str | re.Pattern[str], *, within: str = "body") -> None:
        """Wait until a text is visible."""
        self.page.locator(within).get_by_text(text).first.wait_for(state="visible")

    def record_overflow(self) -> None:
        """Record the page if it is wider than the screen."""
        self.page.wait_for_load_state("domcontentloaded")
        over = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if over > 0:
            self.journey.errors.append(f"{self.page.url} is {over} px too wide")


@contextmanager
def visit(browser: Browser, url: str, journey: Journey, *, size: ViewportSize = DESKTOP) -> Iterator[Visitor]:
    """Return a visitor who is signed in as `journey.username`, on that user's home page."""
    context = browser.new_context(base_url=url, viewport=size, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    try:
        sign_in(page, url, journey.username)

        def opened(frame: Frame) -> None:
            journey.pages += frame is page.main_frame

        def answered(response: Response) -> None:
            if response.status >= CLIENT_ERROR and response.url.startswith(url):
                journey.errors.append(f"{response.status} {response.url}")

        def failed(request: Request) -> None:
            # The browser aborts streams and requests of a page that the user leaves.
            if request.failure != "net::ERR_ABORTED":
                journey.errors.append(f"{request.failure} {request.url}")

        page.on("framenavigated", opened)
        page.on("response", answered)
        page.on("requestfailed", failed)
        page.on("pageerror", lambda error: journey.errors.append(str(error)))
        began = time.monotonic()
        visitor = Visitor(page, journey)
        visitor.record_overflow()
        yield visitor
        journey.seconds += time.monotonic() - began
    finally:
        context.close()
