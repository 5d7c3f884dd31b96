"""A refused request is made, approved and run by two users in two browsers, within a minute of clicks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_browser import DESKTOP, PHONE, START_LIMIT_MS, Person
from tests.instance import Api, Berth

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.engine,
    pytest.mark.browser,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough("a whole Berth with a browser; `make test` has the pages in tests/ui"),
]
UNDER_A_MINUTE_S = 60
SET_UP = """
from portal.people.accounts.models import Team, User
from portal.common.actors import SYSTEM
from portal.quota.limits.services import limits
User.objects.filter(username="ben").update(is_approver=True)
team = Team.objects.get(memberships__user__username="ada")
limits.set_quota(actor=SYSTEM, team=team, resource="cpu_milli", quota=1000)
"""
CLEAN_UP = """
from portal.people.accounts.models import User
from portal.quota.limits.models import Grant, Quota
Grant.objects.all().delete()
Quota.objects.all().delete()
User.objects.update(is_approver=False)
"""


@pytest.fixture
def small_quota(berth: Berth, ada: Api) -> Iterator[None]:
    """ada's team may use one core; ben, a member, decides requests."""
    berth.run("manage.py", "shell", "-c", SET_UP)
    yield
    berth.run("manage.py", "shell", "-c", CLEAN_UP)


def test_refused_request_is_approved_and_runs(
    berth: Berth, ada: Api, small_quota: None, browser: Browser
) -> None:
    asks = Person(browser, berth, "ada", "approval-asks", **DESKTOP)
    decides = Person(browser, berth, "ben", "approval-decides", **PHONE)
    for person in (asks, decides):
        person.sign_in()
    clicks, began = 0, time.monotonic()

    page = asks.page
    page.get_by_role("link", name=re.compile("^New( workspace)?$")).first.click()
    page.locator("label[for=flavor-cpu-large]").click()
    page.locator("#start", has_text="Ask for more").wait_for()
    asks.shot("refused")
    page.locator("#start").click()
    page.fill("textarea[name=note]", "Training for the paper")
    asks.shot("asks")
    page.locator("main form button.primary").first.click()
    page.get_by_text("Open", exact=True).first.wait_for()
    clicks += 4

    inbox = decides.page
    inbox.goto(f"{berth.url}/quotas/approvals/")
    inbox.get_by_text("Training for the paper").wait_for()
    decides.shot("inbox")
    inbox.get_by_role("button", name="Approve").click()
    inbox.get_by_text("Approved").first.wait_for()
    clicks += 1
    clicking_s = time.monotonic() - began

    (row,) = ada.json("GET", "workspaces")["results"]
    ada.wait(row["id"], "running", limit_s=START_LIMIT_MS / 1000)
    page.goto(f"{berth.url}/workspaces/{row['id']}/")
    page.locator("#act-open").wait_for()
    asks.shot("running")
    for person in (asks, decides):
        person.context.close()
    assert clicks <= 6
    assert clicking_s < UNDER_A_MINUTE_S
