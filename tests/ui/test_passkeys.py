"""Passkeys and the second step in a real browser, with Chromium's virtual authenticator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.sessions.models import Session

from portal.people.accounts.models import User
from portal.people.accounts.session_store import PROVEN_AT, SessionStore
from tests.accounts.authenticators import code_of, with_app
from tests.factories import PASSWORD
from tests.suite.choice import quick_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]


@pytest.fixture
def on_localhost(served: str, settings: Any) -> str:
    """The portal under a name that supports passkeys, unlike an IP address."""
    return served.replace("127.0.0.1", "localhost")


def virtual_authenticator(page: Page, **options: Any) -> str:
    """Add a virtual authenticator with automatic user presence."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    authenticator = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
        **options,
    }
    answer = session.send("WebAuthn.addVirtualAuthenticator", {"options": authenticator})
    return str(answer["authenticatorId"])


def by_password(page: Page, base: str, name: str = "alice") -> None:
    page.goto(f"{base}/sign-in/")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def add_passkey(page: Page, base: str, name: str) -> None:
    page.goto(f"{base}/account/two-step/")
    page.get_by_role("link", name="Add passkey").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Add passkey").click()


def test_passkey_is_added_and_signs_in_alone(visit: Visit, alice: User, on_localhost: str) -> None:
    page = visit(None)
    virtual_authenticator(page)
    by_password(page, on_localhost)
    add_passkey(page, on_localhost, "Laptop")
    page.get_by_role("heading", name="Your recovery codes").wait_for()
    assert page.locator(".codes li").count() == 10
    page.get_by_role("link", name="I have saved the codes").click()
    page.locator("summary", has_text="Laptop").wait_for()
    page.goto(f"{on_localhost}/sign-in/")
    assert page.url == f"{on_localhost}/", "signed in still"

    page.context.clear_cookies()
    page.goto(f"{on_localhost}/sign-in/?next=/account/")
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.wait_for_url(f"{on_localhost}/account/")

    page.context.clear_cookies()
    by_password(page, on_localhost)
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url(f"{on_localhost}/")


@pytest.mark.thorough("a ceremony more; tests of accounts have the rules")
def test_non_discoverable_key_signs_in_with_the_name(visit: Visit, alice: User, on_localhost: str) -> None:
    page = visit(None)
    virtual_authenticator(page, hasResidentKey=False)
    by_password(page, on_localhost)
    add_passkey(page, on_localhost, "Stick")
    page.get_by_role("heading", name="Your recovery codes").wait_for()
    page.context.clear_cookies()
    page.goto(f"{on_localhost}/sign-in/")
    page.get_by_label("Name").fill("alice")
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.wait_for_url(f"{on_localhost}/")


@pytest.mark.thorough("a ceremony more; tests of accounts have the rules")
def test_the_same_passkey_is_not_added_twice(visit: Visit, alice: User, on_localhost: str) -> None:
    page = visit(None)
    virtual_authenticator(page)
    by_password(page, on_localhost)
    add_passkey(page, on_localhost, "Laptop")
    page.get_by_role("heading", name="Your recovery codes").wait_for()
    add_passkey(page, on_localhost, "Again")
    page.get_by_text("This device already has a passkey for this account.").wait_for()


def test_dismissed_request_is_reported_and_repeatable(visit: Visit, alice: User, on_localhost: str) -> None:
    page = visit(None)
    virtual_authenticator(page, isUserVerified=False)
    page.goto(f"{on_localhost}/sign-in/")
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.get_by_text("No passkey was used").wait_for()
    assert page.get_by_role("button", name="Sign in with a passkey").is_enabled()


@pytest.mark.thorough("a ceremony more; tests of accounts have the rules")
def test_stale_session_is_confirmed_with_a_passkey(
    visit: Visit, ada: User, bob: User, on_localhost: str
) -> None:
    page = visit(None)
    virtual_authenticator(page)
    by_password(page, on_localhost, "ada")
    add_passkey(page, on_localhost, "Laptop")
    page.get_by_role("heading", name="Your recovery codes").wait_for()
    _make_stale()
    page.goto(f"{on_localhost}/users/bob/delete/")
    page.get_by_role("button", name="Delete account").click()
    page.get_by_role("heading", name="Confirm your identity").wait_for()
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url(f"{on_localhost}/users/")
    bob.refresh_from_db()
    assert bob.deleted_at is not None


def test_second_step_works_without_javascript(visit: Visit, alice: User, on_localhost: str) -> None:
    secret = with_app(alice)
    page = visit(None, java_script_enabled=False)
    by_password(page, on_localhost)
    assert not page.get_by_role("button", name="Use a passkey").is_visible()
    page.get_by_label("Code of your authenticator app").fill(code_of(secret))
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url(f"{on_localhost}/")


@pytest.mark.parametrize("scheme", quick_of(["light", "dark"], ["light"], "the same pages in the dark"))
def test_the_pages_are_accessible_and_fit_a_phone(
    visit: Visit, alice: User, on_localhost: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with_app(alice)
    page = visit(alice, color_scheme=scheme, viewport={"width": 320, "height": 640})
    for path in ("/account/two-step/", "/account/two-step/passkeys/add/", "/account/confirm/", "/account/"):
        page.goto(path)
        found = Axe().run(page)
        assert not found.response["violations"], f"{path}: {found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    stranger = visit(None, color_scheme=scheme, viewport={"width": 320, "height": 640})
    stranger.goto("/sign-in/")
    stranger.get_by_label("Name").fill("alice")
    stranger.get_by_label("Password").fill(PASSWORD)
    stranger.get_by_role("button", name="Sign in", exact=True).click()
    stranger.get_by_role("heading", name="Second step").wait_for()
    found = Axe().run(stranger)
    assert not found.response["violations"], found.generate_report()
    assert stranger.evaluate("document.documentElement.scrollWidth <= innerWidth")


def _make_stale() -> None:
    """Mark all sessions as authenticated long ago."""
    for row in Session.objects.all():
        store = SessionStore(row.session_key)
        store[PROVEN_AT] = 0
        store.save()
