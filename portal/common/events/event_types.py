"""Event types of webhooks and team channels. Each type covers one or more kinds of audit entries.

Names and meanings are a contract with receivers: a type is never renamed, but may cover more kinds later.
docs/webhooks.md lists all types; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.common.events.kinds import AuditKind as K


class Audience(IntEnum):
    """Who may subscribe to a type. A higher level includes the lower ones."""

    TEAM = 1
    OPERATORS = 2
    ADMINISTRATORS = 3


@dataclass(frozen=True, slots=True)
class EventType:
    """An event type: its name, the kinds of entries it covers, and a one-sentence summary."""

    name: str
    kinds: tuple[K, ...]
    audience: Audience
    summary: str | Promise

    @property
    def subject(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]


def _types() -> Iterable[EventType]:
    team, operators, administrators = Audience
    yield EventType(
        "workspace.requested", (K.WORKSPACE_REQUESTED,), team, _("Somebody asked for a workspace.")
    )
    yield EventType("workspace.started", (K.WORKSPACE_READY,), team, _("A workspace is ready to be used."))
    yield EventType(
        "workspace.preempting", (K.WORKSPACE_PREEMPTING,), team, _("A workspace has to make room.")
    )
    yield EventType("workspace.stopped", (K.WORKSPACE_STOPPED,), team, _("A workspace has stopped."))
    yield EventType("workspace.failed", (K.WORKSPACE_FAIL,), team, _("A workspace could not be started."))
    yield EventType(
        "workspace.lost",
        (K.WORKSPACE_LOST,),
        team,
        _("A running workspace ended without being asked to: it disappeared, or its program ended."),
    )
    yield EventType(
        "workspace.ended",
        (K.WORKSPACE_GONE, K.WORKSPACE_CANCEL),
        team,
        _("Nothing of a workspace is left running, after a failure or because it was deleted."),
    )
    yield EventType("quota_request.made", (K.QUOTA_REQUEST_ASKED,), team, _("Somebody asked for more."))
    yield EventType(
        "quota_request.decided",
        (K.QUOTA_REQUEST_APPROVED, K.QUOTA_REQUEST_DENIED),
        team,
        _("A request for more was approved or denied."),
    )
    yield EventType(
        "quota_request.cancelled", (K.QUOTA_REQUEST_CANCELLED,), team, _("A request for more was cancelled.")
    )
    yield EventType(
        "grant.ended",
        (K.QUOTA_GRANT_ENDED, K.QUOTA_GRANT_REVOKED),
        team,
        _("What had been granted has ended."),
    )
    yield EventType(
        "quota.changed", (K.QUOTA_SET, K.QUOTA_REMOVED), team, _("A limit of the team was changed.")
    )
    yield EventType(
        "budget.warned",
        (K.LEDGER_WARNED_80, K.LEDGER_WARNED_100),
        team,
        _("The team has used 80 or 100 % of its GPU-hours."),
    )
    for verb, kind, summary in (
        ("requested", K.RESERVATION_REQUESTED, _("Somebody asked for a reservation.")),
        ("booked", K.RESERVATION_BOOKED, _("A reservation is booked.")),
        ("denied", K.RESERVATION_DENIED, _("A reservation was not booked.")),
        ("changed", K.RESERVATION_CHANGED, _("A reservation was changed.")),
        ("cancelled", K.RESERVATION_CANCELLED, _("A reservation was cancelled.")),
        ("begun", K.RESERVATION_BEGUN, _("The time of a reservation has begun.")),
        ("ended", K.RESERVATION_ENDED, _("The time of a reservation is over.")),
        ("missed", K.RESERVATION_MISSED, _("A reservation began without all of its capacity.")),
    ):
        yield EventType(f"reservation.{verb}", (kind,), team, summary)
    yield EventType(
        "team.members_changed",
        (K.TEAM_MEMBER_SET, K.TEAM_MEMBER_REMOVED, K.TEAM_OWNER_PASSED),
        team,
        _("Somebody came into the team, left it or got another role."),
    )
    yield EventType(
        "team.egress_set", (K.TEAM_EGRESS_SET,), team, _("What a team's workspaces may reach was changed.")
    )
    yield EventType("team.renamed", (K.TEAM_RENAMED,), team, _("The team has another name."))
    yield EventType("team.archived", (K.TEAM_ARCHIVED,), team, _("The team was archived."))
    yield EventType("team.restored", (K.TEAM_RESTORED,), team, _("An archived team was restored."))
    yield EventType("team.deleted", (K.TEAM_DELETED,), operators, _("A team was deleted."))
    yield EventType("team.created", (K.TEAM_CREATED,), operators, _("There is a new team."))
    yield EventType(
        "gpu_check.failed",
        (K.DEVICE_CHECK_FAILED, K.DEVICE_CHECK_HUNG, K.DEVICE_SCRUB_FAILED, K.DEVICE_SCRUB_HUNG),
        operators,
        _("A GPU has failed a check or a scrub."),
    )
    yield EventType(
        "gpu_check.degraded",
        (K.DEVICE_CHECK_DEGRADED, K.DEVICE_SCRUB_DEGRADED),
        operators,
        _("A GPU works with less than it should."),
    )
    yield EventType("gpu_check.passed", (K.DEVICE_CHECK_PASSED,), operators, _("A GPU has passed a check."))
    yield EventType(
        "device.state_changed",
        (
            K.DEVICE_ILL, K.DEVICE_WELL, K.DEVICE_UNSEEN, K.DEVICE_DISAPPEARED, K.DEVICE_RETURNED,
            K.DEVICE_REPLACED, K.DEVICE_CORDONED, K.DEVICE_UNCORDONED, K.DEVICE_DRAINED,
        ),
        operators,
        _("A GPU went out of service or came back."),
    )  # fmt: skip
    yield EventType(
        "node.state_changed",
        (K.NODE_ONLINE, K.NODE_OFFLINE, K.NODE_CORDONED, K.NODE_UNCORDONED, K.NODE_DRAINED, K.NODE_APPEARED),
        operators,
        _("A node appeared, went out of service or came back."),
    )
    yield EventType(
        "pool.state_changed",
        (K.POOL_ONLINE, K.POOL_UNREACHABLE, K.POOL_UNKNOWN, K.POOL_CREATED),
        operators,
        _("A pool was added, is reached or cannot be reached."),
    )
    for verb, summary in (
        ("invited", _("Somebody was invited.")),
        ("joined", _("Somebody who was invited has signed in.")),
        ("changed", _("An account was changed.")),
        ("deactivated", _("An account was deactivated.")),
        ("reactivated", _("An account was given back.")),
        ("deleted", _("An account was deleted.")),
    ):
        yield EventType(f"user.{verb}", (K(f"user.{verb}"),), administrators, summary)
    yield EventType(
        "session.locked_out",
        (K.SESSION_LOCKED_OUT,),
        administrators,
        _("There were too many wrong passwords for an account."),
    )


TYPES: dict[str, EventType] = {event_type.name: event_type for event_type in _types()}
TYPE_OF_KIND: dict[str, EventType] = {
    kind.value: event_type for event_type in TYPES.values() for kind in event_type.kinds
}


def types_for(audience: Audience) -> list[EventType]:
    """Return the types available to this audience, in table order."""
    return [event_type for event_type in TYPES.values() if event_type.audience <= audience]
