"""The queue page by reason: one heading for equal reasons, a line for each request."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Role
from portal.scheduling import queue_groups
from portal.scheduling.codes import AdmissionCode
from portal.workspaces.models import QueueEntry, Workspace, WorkspaceStatus
from tests.factories import MembershipFactory, TeamFactory, UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
H100 = "gpu:h100"


def blocked(rule: Rule, team: Any, wanted: int = 1000, **params: Any) -> dict[str, Any]:
    """Columns of a queue entry that waits for this reason."""
    amounts = {"resource": H100, "wanted": wanted, "free": 0, "limit": 2000}
    reason = Reason(rule, {**amounts, "team": team.name, "holders": [], "outcome": "queued", **params})
    return {
        "outcome": "queued",
        "reason": reason.as_json(),
        "blocker": {"rule": rule.value, "holders": [], **amounts},
    }


def waiting(numbers: range, owner: Any, team: Any, flavor: Any, **columns: Any) -> None:
    now = timezone.now()
    made = Workspace.objects.bulk_create(
        WorkspaceFactory.build(
            name=f"wait-{n}", owner=owner, team=team, flavor=flavor, template=TEMPLATE[0], state_since=now,
            requested_at=now - timedelta(minutes=n),
        )
        for n in numbers
    )  # fmt: skip
    WorkspaceStatus.objects.bulk_create(WorkspaceStatus(workspace=row) for row in made)
    QueueEntry.objects.bulk_create(
        QueueEntry(workspace=row, position=int(row.name[5:]), **columns) for row in made
    )


TEMPLATE: list[Any] = []


@pytest.fixture(autouse=True)
def first(team: Any, bob: Any) -> Any:
    """A request of bob, whose flavor and template the others share."""
    row = WorkspaceFactory(name="wait-0", owner=bob, team=team)
    QueueEntry.objects.filter(pk=row.pk).update(position=0, **blocked(Rule.TEAM_LIMIT, team))
    TEMPLATE[:] = [row.template]
    return row


def sections(page: Any) -> dict[str, tuple[int, int]]:
    """Return number and shown lines of each group, by heading, in order."""
    found = {}
    for part in unescape(page.content.decode()).split('<section class="card"')[1:]:
        heading = re.search(r'<h2 id="reason-\d+">(.*?) <span class="badge plain">(\d+)<', part)
        assert heading is not None
        found[heading[1]] = (int(heading[2]), part.count("<tr id="))
    return found


def test_equal_reasons_have_one_heading(first, team, alice, bob, olga, as_user):
    audio = TeamFactory(slug="audio", name="Audio")
    zoe = MembershipFactory(team=audio, user=UserFactory(username="zoe"), role=Role.MEMBER).user
    waiting(range(1, 40), bob, team, first.flavor, **blocked(Rule.TEAM_LIMIT, team, wanted=2000))
    waiting(range(40, 43), zoe, audio, first.flavor, **blocked(Rule.TEAM_LIMIT, audio))
    waiting(range(43, 45), zoe, audio, first.flavor, **blocked(Rule.ORDER, audio))
    waiting(range(45, 46), bob, team, first.flavor, **blocked(Rule.ORDER, team))
    waiting(
        range(46, 47),
        zoe,
        audio,
        first.flavor,
        **{**blocked(Rule.TEAM_LIMIT, audio), "outcome": "needs_approval"},
    )
    page = as_user(alice).get("/queue/")
    assert sections(page) == {
        "Team quota in use: Vision, H100": (40, queue_groups.ROWS_PER_GROUP),
        "Team quota in use: Audio, H100": (3, 3),
        "Held for requests ahead in the queue": (3, 3),
        "Needs approval: Team quota in use: Audio, H100": (1, 1),
    }
    body = unescape(page.content.decode())
    assert body.count("The limit of Vision is 2 × H100") == 5, "for the group, and for 4 of another size"
    assert "47 workspaces wait" in body
    # Only the group, with all its rows in pages.
    link = re.search(r'id="all-1" href="([^"]+)"', body)
    assert link is not None
    alone = as_user(alice).get(f"/queue/{link[1]}")
    assert sections(alone) == {"Team quota in use: Vision, H100": (40, 40)}
    assert "All reasons" in alone.content.decode()
    # Own requests are shown at any position.
    own = sections(as_user(bob).get("/queue/"))["Team quota in use: Vision, H100"]
    assert own == (40, queue_groups.ROWS_PER_GROUP + queue_groups.OWN_PER_GROUP)
    assert list(sections(as_user(olga).get("/queue/?team=audio"))) == [
        "Team quota in use: Audio, H100",
        "Held for requests ahead in the queue",
        "Needs approval: Team quota in use: Audio, H100",
    ]


def test_next_step_depends_on_the_reader(first, team, alice, bob, olga, as_user):
    def step(user: Any) -> str:
        found = re.search(r'id="step-1" href="([^"]+)"', as_user(user).get("/queue/").content.decode())
        return unescape(found[1]) if found else ""

    assert step(bob).startswith("/quotas/ask/?team=vision&kind=quota")
    assert step(alice) == ""
    assert step(olga) == "/quotas/"
    QueueEntry.objects.update(**blocked(Rule.CAPACITY, team, node="", node_reason=None, more_nodes=0))
    assert step(alice) == "/gpus/"
    QueueEntry.objects.update(outcome="needs_approval")
    assert step(olga) == "/inbox/"


def test_the_expected_start_is_never_past(first, bob, as_user):
    def shown() -> str:
        return as_user(bob).get("/queue/").content.decode().split('<td class="c-eta">')[1].split("</td>")[0]

    assert "unknown" in shown()
    QueueEntry.objects.update(eta_at=timezone.now() - timedelta(minutes=3))
    assert "overdue" in shown()
    assert "<time" not in shown()
    pages = ("/", f"/workspaces/{first.pk}/")
    assert all("start overdue" in as_user(bob).get(path).content.decode() for path in pages)
    QueueEntry.objects.update(eta_at=timezone.now() + timedelta(hours=3))
    assert "<time" in shown()
    assert all("start overdue" not in as_user(bob).get(path).content.decode() for path in pages)


def test_groups_of_plain_and_missing_reasons(first, bob, as_user):
    browser = as_user(bob)
    QueueEntry.objects.update(reason=Reason(AdmissionCode.HOME_MOVING, {"node": "gpu-1"}).as_json())
    body = browser.get("/queue/").content.decode()
    assert "Home folder is moving" in body
    assert 'href="/homes/"' in body
    unknown = {"code": "no_longer_known", "params": {}}
    for reason, heading in (({}, "Checking…"), (unknown, "Other reasons")):
        QueueEntry.objects.update(reason=reason)
        assert list(sections(browser.get("/queue/"))) == [heading]
    for key in ("x", "|||", "team_limit|gpu:h100|0|Nobody|here"):
        assert "No matching workspaces" in browser.get("/queue/", {"reason": key}).content.decode()


def test_long_queue_takes_as_many_queries_as_a_short_one(first, team, bob, alice, as_user):
    def asked(path: str) -> int:
        as_user(alice).get(path)
        with CaptureQueriesContext(connection) as queries:
            assert as_user(alice).get(path).status_code == 200
        return len(queries)

    waiting(range(1, 3), bob, team, first.flavor, **blocked(Rule.ORDER, team))
    few = asked("/queue/")
    waiting(range(3, 70), bob, team, first.flavor, **blocked(Rule.ORDER, team))
    assert asked("/queue/") == few
