"""From no team to a new workspace: two users and two open pages without reloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_browser import DESKTOP, PHONE, Person
from tests.instance import Berth
from tests.populate import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.engine,
    pytest.mark.browser,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough("a whole Berth with a browser; `make test` has the pages in tests/ui"),
]
SET_UP = f"""
from portal.people.accounts import services, users
from portal.people.accounts.models import User
from portal.common.actors import SYSTEM
fay = users.create(actor=SYSTEM, username="fay", password={PASSWORD!r})
olaf = users.create(actor=SYSTEM, username="olaf", password={PASSWORD!r})
services.create_team(actor=SYSTEM, slug="optics", name="Optics", owner=olaf)
"""
CLEAN_UP = """
from portal.people.accounts.models import Team, User
User.objects.filter(username__in=["fay", "olaf"]).update(is_active=False)
Team.objects.get(slug="optics").memberships.all().delete()
"""


@pytest.fixture
def optics(berth: Berth) -> Iterator[None]:
    """fay is in no team; olaf owns one."""
    berth.run("manage.py", "shell", "-c", SET_UP)
    yield
    berth.run("manage.py", "shell", "-c", CLEAN_UP)


def test_badge_of_the_owner_and_page_of_the_requester_update_live(
    berth: Berth, optics: None, browser: Browser
) -> None:
    """Within the 20 s of a locator; without push, pages poll once a minute."""
    asks = Person(browser, berth, "fay", "joining-asks", **PHONE)
    owns = Person(browser, berth, "olaf", "joining-owns", **DESKTOP)
    for person in (asks, owns):
        person.sign_in()
    owner, page = owns.page, asks.page
    owner.goto("/teams/")
    assert not owner.locator("#to-decide .badge").count()

    page.locator("#join-optics").click()
    page.get_by_label("Message to the owners").fill("I build the new camera")
    page.get_by_role("button", name="Send request").click()
    page.get_by_text("Waiting for an owner").wait_for()
    page.goto("/")
    page.get_by_text("You are not in a team yet").wait_for()
    owner.locator("#to-decide .badge").wait_for()
    owns.shot("badge")

    owner.locator("nav.main").get_by_role("link", name="Inbox").click()
    owner.get_by_text("I build the new camera").wait_for()
    owns.shot("inbox")
    owner.get_by_role("button", name="Approve as member").click()
    owner.get_by_text("Your inbox is empty").wait_for()
    assert not owner.locator("#to-decide .badge").count()

    page.get_by_text("You are now a member of Optics.").wait_for()
    asks.shot("joined")
    page.locator("#first-workspace").click()
    page.wait_for_url("**/workspaces/new/**")
    for person in (asks, owns):
        person.context.close()
