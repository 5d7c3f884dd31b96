"""User management by pages only: invitation, joining, deactivation, with accessible pages."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Error as PlaywrightError

from tests.factories import PASSWORD, WorkspaceFactory, make_token
from tests.ui.conftest import shot
from tests.ui.test_browser import COLOUR_RULES, DESKTOP, NARROW, PHONE, overflows, too_small, violations

if TYPE_CHECKING:
    from portal.people.accounts.models import Team, User

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]


def test_a_pasted_list_invites_people(visit: Any, ada: User, team: Team, charlie: User) -> None:
    page = visit(ada)
    page.goto("/teams/vision/")
    page.get_by_role("link", name="Invite people").click()
    assert not violations(page)
    people = page.get_by_label("People", exact=True)
    people.fill("username,role\ncharlie; viewer\nhal@example.org\nnobody\n")
    page.get_by_role("button", name="Check list").click()
    results = page.get_by_role("region", name="Result of each line")
    assert "No account has the username “nobody”" in results.inner_text()
    shot(page, "invite-preview")
    page.get_by_role("button", name="Invite 2 people").click()
    page.get_by_role("heading", name="2 people invited").wait_for()
    assert "/welcome/" in page.get_by_label("Links", exact=True).input_value()
    roles = dict(team.memberships.values_list("user__username", "role"))
    assert (roles["charlie"], roles["hal"]) == ("viewer", "member")
    for viewport in (DESKTOP, PHONE):
        page.set_viewport_size(viewport)
        assert not violations(page) and not overflows(page) and not too_small(page)
        shot(page, f"invite-results-{viewport['width']}")


@pytest.mark.thorough("a long way through pages that have quick tests each")
def test_user_is_invited_joins_and_is_deactivated(visit: Any, ada: User, alice: User, team: Team) -> None:
    WorkspaceFactory(owner=alice, team=team, name="paper", state="pending")
    make_token(alice)
    page = visit(ada, color_scheme="light")
    page.goto("/users/")
    page.get_by_role("link", name="Invite").click()
    page.get_by_label("Name", exact=True).fill("gina")
    page.locator("#id_team").select_option("vision")
    page.get_by_role("button", name="Invite").click()
    link = page.get_by_label("Link", exact=True).input_value()
    looked_at(page, "invited")

    guest = visit(None)
    guest.goto("/welcome/" + link.split("/welcome/")[1])
    looked_at(guest, "welcome")
    guest.get_by_label("Password", exact=True).fill(PASSWORD)
    guest.get_by_label("Repeat password").fill(PASSWORD)
    guest.get_by_role("button", name="Set password").click()
    guest.wait_for_url("**/")
    guest.goto("/teams/vision/")
    guest.get_by_role("heading", name="Vision").wait_for()
    guest.goto("/account/")
    guest.get_by_text("(this session)").wait_for()
    looked_at(guest, "account")

    for name in ("alice", "gina"):
        page.goto(f"/users/{name}/")
        looked_at(page, f"user {name}")
        page.get_by_role("link", name="Deactivate").click()
        looked_at(page, f"deactivate {name}")
    page.get_by_label("Note").fill("left")
    page.get_by_role("button", name="Deactivate gina").click()
    page.get_by_text("gina deactivated.").wait_for()
    looked_at(page, "deactivated")
    # The page is notified, and may already redirect.
    with suppress(PlaywrightError):
        guest.reload()
    guest.get_by_role("button", name="Sign in", exact=True).wait_for()
    page.goto("/audit/?action=session.")
    looked_at(page, "audit")
    page.emulate_media(color_scheme="dark")
    for path in ("/users/", "/users/gina/", "/users/alice/delete/", "/audit/"):
        page.goto(path)
        assert not violations(page, COLOUR_RULES), path


def looked_at(page: Any, name: str) -> None:
    wrong = violations(page) + too_small(page)
    if page.locator(".btn.primary:visible").count() > 1:
        wrong.append("more than one primary button")
    for size in (PHONE, NARROW, DESKTOP):
        page.set_viewport_size(size)
        wrong += [f"wider than {size['width']} px, {font} font" for font in overflows(page)]
    assert not wrong, name + "\n" + "\n".join(wrong)
