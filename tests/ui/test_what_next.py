"""Next steps shown by pages: on a new site, after a new team, a decision, or a failed build."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Membership, Team, User
from portal.quota.limits.services import limits as quotas
from portal.web.home.views import home
from tests.environments.helpers import environment, failed, only
from tests.factories import MembershipFactory, UserFactory, WorkspaceFactory, local_pool_with, node_info
from tests.quota_requests.helpers import ask

pytestmark = pytest.mark.django_db


def steps(page: Any) -> dict[str, bool]:
    """Return the first steps on the home page, each with whether it is done."""
    rows = re.findall(r'<li class="step( done)?">.*?<(?:a|span)[^>]*>(.*?)<', page.content.decode())
    return {title: bool(done) for done, title in rows}


def test_first_steps_of_an_administrator_are_checked_off_and_disappear(as_user, ada):
    client = as_user(ada)
    open_steps = {
        "Connect a machine": False,
        "Protect your account with a second factor": False,
        "Invite people": False,
        "Add members to a team": False,
        "Set a quota": False,
        "Start a workspace": False,
    }
    assert steps(client.get("/")) == open_steps
    Pool.objects.create(slug="one", name="One", driver="local", inventory_at=timezone.now())
    team = Team.objects.create(slug="vision", name="Vision")
    MembershipFactory(team=team, user=UserFactory(username="bob"))
    quotas.set_quota(actor=SYSTEM, team=team, resource="cpu_milli", quota=1000)
    done = {"Connect a machine", "Invite people", "Add members to a team", "Set a quota"}
    assert steps(client.get("/")) == {title: title in done for title in open_steps}
    assert steps(as_user(User.objects.get(username="bob")).get("/")) == {}
    # Hidden in this browser only, without a flag in the database.
    assert client.post("/setup/hide/")["Location"] == "/"
    assert steps(client.get("/")) == {}
    other = as_user(ada)
    assert len(steps(other.get("/"))) == len(open_steps)
    User.objects.filter(pk=ada.pk).update(mfa_since=timezone.now())
    WorkspaceFactory(owner=ada, team=team)
    assert steps(other.get("/")) == {}
    # This browser remembers completion: the steps are not computed again.
    with patch.object(home, "setup_steps") as computed:
        other.get("/")
    computed.assert_not_called()


def test_new_team_suggests_members_and_a_quota(as_user, ada, olga):
    for person in (ada, olga):
        slug = f"team-{person.username}"
        page = as_user(person).post("/teams/", {"slug": slug, "name": slug}, follow=True).content.decode()
        assert "Team created" in page
        assert "Next:" in page and f"/teams/{slug}/invite/" in page and f"/quotas/?q={slug}" in page
        assert "Next:" not in as_user(person).get(f"/teams/{slug}/").content.decode()
    assert Membership.objects.filter(role="owner").count() == 2


def test_decision_shows_the_next_request(as_user, olga, bob, alice, team):
    User.objects.filter(pk=olga.pk).update(is_approver=True)
    local_pool_with(node_info(gpus=8))
    first, second = ask(bob, team), ask(alice, team, amount=2000)
    client, headers = as_user(olga), {"HX-Request": "true", "HX-Target": f"r-{first.pk}"}
    decided = {"decision": "approve", "amount": "1", "lasts": "asked", "note": "", "next": "inbox"}
    urls = [f"/quotas/requests/{row.pk}/" for row in (first, second)]
    answer = client.post(f"{urls[0]}decide/", decided, headers=headers).content.decode()
    assert f'href="#r-{second.pk}">Next request' in answer
    assert f'href="{urls[1]}">Next request' in client.get(urls[0]).content.decode()
    assert "Next request" not in as_user(bob).get(urls[0]).content.decode()
    last = client.post(f"{urls[1]}decide/", decided, headers=headers).content.decode()
    assert "Next request" not in last


def test_failed_build_shows_its_log_line_and_links_to_the_source(as_user, alice, team, local_pool, sent):
    environment(team=team, slug="tools", actor=alice)
    assert failed(only(sent), "no_such_package", "Because nonesuch was not found")
    page = as_user(alice).get("/environments/tools/").content.decode()
    box = page[page.index('id="mending"') :][:1500]
    assert '<mark class="wrong-line">Because nonesuch was not found</mark>' in box
    assert 'href="/environments/tools/edit/#id_source"' in box and "Edit and build again" in box
