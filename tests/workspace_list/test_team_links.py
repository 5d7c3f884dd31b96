"""Links of a team's page to its workspaces, with the numbers of the list."""

from __future__ import annotations

from typing import Any

import pytest

from portal.people.accounts.models import Team
from portal.workspaces.lifecycle import State
from tests.factories import MembershipFactory, TeamFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(team: Team, alice: Any, bob: Any, local_pool: Any) -> None:
    """Of vision: bob has one running and one queued, alice one running, one stopped and one deleted."""
    for owner, state in (
        *((bob, State.RUNNING), (bob, State.PENDING), (alice, State.RUNNING), (alice, State.STOPPED)),
        (alice, State.TERMINATED),
    ):
        WorkspaceFactory(owner=owner, team=team, state=state, pool=local_pool)
    other = TeamFactory(slug="audio")
    MembershipFactory(user=bob, team=other)
    WorkspaceFactory(owner=bob, team=other, state=State.RUNNING, pool=local_pool)


def test_links_lead_to_the_filtered_list_with_its_count(running, as_user, alice, bob, olga):
    for reader, expected, others in ((alice, ["2", "1", "4"], True), (bob, ["1", "1", "2"], False)):
        client = as_user(reader)
        page = client.get("/teams/vision/")
        shown = page.context["workspaces"]
        assert ([link.count for link in shown.links], shown.others) == (expected, others)
        for link in shown.links:
            listed = client.get(link.url).context
            assert listed["count_text"] == link.count and len(listed["rows"]) == int(link.count)
            assert {row.workspace.team.slug for row in listed["rows"]} == {"vision"}
            assert f'href="{link.url.replace("&", "&amp;")}"' in page.content.decode()
        assert ("Your workspaces" in page.content.decode()) is not others
    assert as_user(olga).get("/teams/vision/").context["workspaces"].others
