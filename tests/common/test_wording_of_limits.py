"""Messages about waiting and limits, built from codes and numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.quota.requests.codes import RequestCode
from portal.quota.reservations.codes import ReservationCode
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import PlacementCode

H100 = "gpu:h100"


def blocker(**more: Any) -> dict[str, Any]:
    return {
        "resource": H100, "wanted": 4000, "free": 1000, "limit": 8000, "team": "Vision", "holders": [], **more
    }  # fmt: skip


def test_evidence_shows_holders_ends_and_idle_amount() -> None:
    tomorrow = (timezone.now() + timedelta(days=1)).astimezone(UTC)
    holder = {"team": "Speech", "amount": 3000, "until": tomorrow.isoformat(), "idle": 1000, "idle_s": 7500}
    said = message_of(Reason(Rule.COHORT, blocker(holders=[holder])))
    assert said.endswith(
        f"from its cohort. 3 × H100 held by Speech, some of it until about {tomorrow:%-d %b %H:%M} UTC"
        " (1 idle for 2 h 5 min)."
    )


def test_message_names_the_first_node_and_counts_the_rest() -> None:
    node = Reason(PlacementCode.NODE_CORDONED, {}).as_json()
    params = {"node": "n1", "node_reason": node, "more_nodes": 1}
    assert message_of(Reason(AdmissionCode.NO_NODE_LARGE_ENOUGH, params)) == (
        "No node is large enough: n1 is cordoned by an operator, and 1 more node."
    )
    nothing = {"node": "", "node_reason": None, "more_nodes": 0}
    assert message_of(Reason(Rule.PLACEMENT, nothing)) == "Waiting for capacity: there are no nodes."


def test_message_of_a_refused_reservation_names_the_next_start() -> None:
    at = datetime(2026, 11, 22, 14, tzinfo=UTC)
    params = {
        "resource": H100, "capacity": 4000, "booked": 3000, "left": 1000, "wanted": 2000,
        "at": at.isoformat(), "until": (at + timedelta(hours=2)).isoformat(),
        "next_start": (at + timedelta(hours=2)).isoformat(),
        "holders": [["A", 1000], ["B", 1000], ["C", 500], ["D", 500]],
    }  # fmt: skip
    clash = Reason(ReservationCode.BOOKED_BY_OTHERS, params)
    assert message_of(clash) == (
        "3 of 4 × H100 booked from 22 Nov, 14:00 UTC to at least 22 Nov, 16:00"
        " (1 by A, 1 by B, 0.5 by C and 1 more team): 1 left, 2 requested."
    )
    assert next_action_of(clash) == "Reserve at most 1, or start at 22 Nov 2026, 16:00 UTC."
    none_left = Reason(ReservationCode.SITE_TOO_SMALL, {**params, "left": 0, "next_start": None})
    assert next_action_of(none_left) == "Choose another model."


def test_texts_of_concurrent_decisions() -> None:
    now = timezone.now()
    for ago, words in ((timedelta(), "a moment ago"), (timedelta(minutes=5, seconds=1), "5 minutes ago")):
        reason = Reason(RequestCode.APPROVED_ALREADY, {"who": "ann", "at": (now - ago).isoformat()})
        assert message_of(reason) == f"ann approved the request {words}."
    denied = Reason(
        RequestCode.DENIED_ALREADY, {"who": "", "at": datetime(2026, 1, 2, tzinfo=UTC).isoformat()}
    )
    assert message_of(denied) == "A rule denied the request on 2 Jan 2026."
