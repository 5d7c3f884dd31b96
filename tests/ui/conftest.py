"""A browser, and the portal served from the process and database of the test."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.factories import WorkspaceFactory

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from portal.people.accounts.models import Team, User
    from portal.workspaces.models import Workspace

LONG_NAME = "a" * 60
LONG_TEAM = "Averyveryverylongteamnamewithoutanyspaces" + "x" * 35


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The ASGI application of the portal on a free port, in a thread of the test."""
    import uvicorn
    from django.core.asgi import get_asgi_application
    from django.db import connections

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # Server threads close their connections at once, so that databases can be dropped.
        connections.settings["default"]["CONN_MAX_AGE"] = 0
        config = uvicorn.Config(
            get_asgi_application(), log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "the portal did not start"
            thread.join(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def shot(page: Page, name: str) -> None:
    """Save a screenshot if a folder is configured."""
    if folder := os.environ.get("BERTH_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


class Visitor:
    """A user at a browser. Console messages are recorded: a refused script fails the test."""

    def __init__(self, browser: Browser, base: str) -> None:
        self.browser, self.base = browser, base
        self.problems: list[str] = []
        self.contexts: list[BrowserContext] = []

    def sign_in(self, user: User | None, *, expected: tuple[str, ...] = (), **options: Any) -> Page:
        """Return a page of a new browser profile, signed in as `user` unless None.

        `expected` are parts of console messages caused by the test.
        """
        from django.conf import settings
        from django.test import Client

        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = self.browser.new_context(base_url=self.base, **options)
        self.contexts.append(context)
        if user is not None:
            client = Client()
            client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
            name = settings.SESSION_COOKIE_NAME
            context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": self.base}])
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self.problems.append(f"script error: {error}"))
        page.on("console", lambda message: self._hear(message.type, message.text, expected))
        return page

    def _hear(self, kind: str, text: str, expected: tuple[str, ...]) -> None:
        # Refused requests are the subject of some tests, which check the resulting page.
        refused = "Failed to load resource" in text or "Response Status Error Code" in text
        # Leaving a page aborts its requests, which htmx reports as sendError.
        aborted = "htmx:sendAbort" in text or "htmx:afterRequest" in text
        expected_here = refused or aborted or any(part in text for part in expected)
        if kind in {"error", "warning"} and not expected_here:
            self.problems.append(f"{kind}: {text}")

    def leave(self) -> None:
        for context in self.contexts:
            context.close()


@pytest.fixture
def visit(browser: Browser, served: str, transactional_db: None) -> Iterator[Callable[..., Page]]:
    """`visit(alice, color_scheme="dark")`: a page of a new profile in which alice is signed in."""
    visitor = Visitor(browser, served)
    yield visitor.sign_in
    visitor.leave()
    assert not visitor.problems, visitor.problems


@pytest.fixture
def workspace_in(team: Team, local_pool: Any) -> Callable[..., Workspace]:
    """`workspace_in("running", alice)`: a row in that state with plausible times."""
    from datetime import timedelta

    from django.utils import timezone

    from portal.catalog.models import Flavor, Template
    from portal.common.actors import SYSTEM
    from portal.common.events.services import record
    from portal.workspaces.lifecycle import HOLDING, State

    def make(state: str, owner: User, **fields: Any) -> Workspace:
        began = timezone.now() - timedelta(minutes=5)
        times: dict[str, Any] = {"requested_at": began, "state_since": began + timedelta(seconds=3)}
        if state in HOLDING or state in {State.STOPPED, State.FAILED}:
            times |= {"pool": local_pool, "generation": 1}
            times |= {"admitted_at": began, "placed_at": began + timedelta(milliseconds=200)}
        if state in {State.RUNNING, State.STOPPING, State.STOPPED}:
            times["ready_at"] = began + timedelta(seconds=3)
        workspace = WorkspaceFactory(
            **{
                "state": state,
                "owner": owner,
                "team": team,
                "template": Template.objects.get(slug="jupyterlab"),
                "flavor": Flavor.objects.get(slug="cpu-small"),
                **times,
                **fields,
            }
        )
        record(actor=owner, kind="workspace.requested", workspace=workspace, message="requested JupyterLab")
        record(
            actor=SYSTEM,
            kind="workspace.place",
            workspace=workspace,
            message="placed the workspace on node-1",
            reason="it fits",
        )
        return workspace

    return make
