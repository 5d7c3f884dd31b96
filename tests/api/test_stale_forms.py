"""Two users with the same form open: the second save is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from portal.notify.channels import sending
from portal.notify.channels.sending import SendOutcome
from portal.people.accounts.models import User
from tests import sites
from tests.api.conftest import Api
from tests.api.test_editing import KINDS
from tests.factories import MembershipFactory, UserFactory
from tests.ui.forms import filled

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
TEAM = "/teams/vision/"
BOARD = "/quotas/limits/?resource=gpu:h100"
CHANGED = "after you opened it"


@dataclass(frozen=True)
class Form:
    """A page with the form of one of `KINDS`.

    `of` names a field of the form and `sends` the typed values. Without `made`, the first user creates the
    object while the second has the form open.
    """

    kind: str
    page: str
    of: str
    sends: dict[str, Any]
    made: bool = True


FORMS = {
    "quota": Form("quota", f"{BOARD}&edit=team:vision", "quota", {"quota": "9", "action": "save"}),
    "removal of a quota": Form("quota", f"{BOARD}&edit=team:vision", "quota", {"action": "remove"}),
    "first quota": Form(
        "quota", f"{BOARD}&edit=team:vision", "quota", {"quota": "9", "action": "save"}, made=False
    ),
    "cohort": Form("cohort", f"{BOARD}&edit=cohort:research", "weight", {"weight": "7", "action": "save"}),
    "share": Form("share", f"{BOARD}&edit=team:vision", "weight", {"weight": "7", "action": "save"}),
    "site limit": Form("site limit", BOARD, "amount", {"amount": "9", "action": "site"}),
    "first site limit": Form("site limit", BOARD, "amount", {"amount": "9", "action": "site"}, made=False),
    "rate": Form("rate", BOARD, "rate", {"rate": "9", "action": "rate"}),
    "cap": Form("cap", TEAM, "resource", {"amount": "9"}),
    "ledger": Form("ledger", TEAM, "period", {"hours": "9", "do": "set"}),
    "first ledger": Form("ledger", TEAM, "period", {"hours": "9", "do": "set"}, made=False),
    "budget": Form("budget", TEAM, "amount", {"amount": "9", "do": "set"}),
    "dotfiles": Form("dotfiles", "/account/dotfiles/", "url", {"url": "https://git.example/other"}),
    "webhook": Form("webhook", "/{path}/", "url", {"name": "Mine"}),
    "channel": Form("channel", "/channels/{id}/", "name", {"name": "Mine"}),
    "service account": Form("service account", "/{path}/", "description", {"description": "Mine"}),
    "user": Form("user", "/users/dora/", "email", {"email": "dora@mine.example"}),
    "checks": Form("checks", "/pools/sim/", "check_every_hours", {"check_every_hours": "99"}),
}


@pytest.fixture
def people(alice: User, bob: User, olga: User, petra: User, team: Any, pool: Any) -> dict[str, User]:
    MembershipFactory(team=team, user=UserFactory(username="dora"))
    root = UserFactory(username="root", is_superuser=True)
    return {"alice": alice, "bob": bob, "olga": olga, "petra": petra, "root": root}


@pytest.mark.parametrize("name", sorted(FORMS))
def test_second_writer_gets_a_conflict(
    name: str, as_user: Any, api: Any, people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "inspect_url", lambda url: SendOutcome(ok=True, service="Slack"))
    form, kind = FORMS[name], KINDS[FORMS[name].kind]
    program: Api = api(people[kind.actor])
    browser: Client = as_user(people[kind.actor])
    path = kind.make(program) if form.made else ""
    page = form.page.format(path=path, id=path.rpartition("/")[2])
    shown = browser.get(page)
    assert shown.status_code == 200, page
    action, sent = filled(shown.content.decode(), form.of)
    if form.made:
        assert program.send(kind.method, path, kind.first).status_code == 200
    else:
        path = kind.make(program)
    before = program.get(path)
    answer = browser.post(action or page, {**sent, **form.sends}, follow=True)
    assert CHANGED in answer.content.decode(), answer.redirect_chain
    assert program.get(path)["ETag"] == before["ETag"]

    # After a reload the change is possible.
    action, sent = filled(browser.get(page).content.decode(), form.of)
    browser.post(action or page, {**sent, **form.sends}, follow=True)
    again = program.get(path)
    assert again.status_code == 404 or again["ETag"] != before["ETag"]
