"""Joining a team by pages only, with accessible pages on every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.factories import TeamFactory
from tests.ui.test_browser import COLOUR_RULES, violations
from tests.ui.test_people import looked_at

if TYPE_CHECKING:
    from portal.people.accounts.models import Team, User

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]


def test_user_without_team_joins_and_reaches_a_workspace(
    visit: Any, fay: User, alice: User, team: Team, local_pool: Any
) -> None:
    """Without Redis, open pages poll every two seconds; with Redis they update at once (`tests/e2e`)."""
    TeamFactory(slug="long", name="X" * 60)
    page = visit(fay)
    page.goto("/")
    looked_at(page, "home")
    page.get_by_role("link", name="Request to join Vision").click()
    looked_at(page, "ask")
    page.get_by_label("Message to the owners").fill("I train the new detector.\nBob knows me.")
    page.get_by_role("button", name="Send request").click()
    page.get_by_text("Waiting for an owner").wait_for()
    looked_at(page, "asked")
    asked = page.url
    page.goto("/join/")
    looked_at(page, "join")
    page.goto("/")
    page.locator("#join-vision").get_by_text("Requested").wait_for()

    owner = visit(alice)
    owner.goto("/inbox/")
    looked_at(owner, "inbox")
    owner.emulate_media(color_scheme="dark")
    # Reload, since colours in transition belong to neither theme.
    owner.reload()
    assert not violations(owner, COLOUR_RULES)
    owner.emulate_media(color_scheme="light")
    owner.get_by_role("link", name="Choose a role, or deny").click()
    owner.wait_for_url(asked)
    looked_at(owner, "decide")
    owner.emulate_media(color_scheme="dark")
    # Reload, since colours in transition belong to neither theme.
    owner.reload()
    assert not violations(owner, COLOUR_RULES)
    owner.get_by_role("button", name="Approve").click()
    owner.get_by_text("fay is now member of Vision.").wait_for()

    # The open page of the requester shows the next step.
    page.get_by_text("You are now a member of Vision.").wait_for()
    page.locator("#first-workspace").click()
    page.wait_for_url("**/workspaces/new/**")
    assert page.locator("#team").input_value() == "vision"
