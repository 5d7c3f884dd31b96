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
    """Users who may subscribe to a type. A higher level includes the lower ones."""

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
    yield EventType("workspace.requested", (K.WORKSPACE_REQUESTED,), team, _("A workspace was requested."))
    yield EventType("workspace.started", (K.WORKSPACE_READY,), team, _("A workspace is ready."))
    yield EventType(
        "workspace.preempting", (K.WORKSPACE_PREEMPTING,), team, _("A workspace is being preempted.")
    )
    yield EventType("workspace.stopped", (K.WORKSPACE_STOPPED,), team, _("A workspace has stopped."))
    yield EventType("workspace.failed", (K.WORKSPACE_FAIL,), team, _("A workspace failed to start."))
    yield EventType(
        "workspace.lost",
        (K.WORKSPACE_LOST,),
        team,
        _("A running workspace ended unexpectedly: it disappeared or its program exited."),
    )
    yield EventType(
        "workspace.ended",
        (K.WORKSPACE_TERMINATED, K.WORKSPACE_CANCEL),
        team,
        _("All resources of a workspace were released after a failure or deletion."),
    )
    yield EventType("quota_request.made", (K.QUOTA_REQUEST_CREATED,), team, _("More quota was requested."))
    yield EventType(
        "quota_request.decided",
        (K.QUOTA_REQUEST_APPROVED, K.QUOTA_REQUEST_DENIED),
        team,
        _("A quota request was approved or denied."),
    )
    yield EventType(
        "quota_request.cancelled", (K.QUOTA_REQUEST_CANCELLED,), team, _("A quota request was cancelled.")
    )
    yield EventType(
        "grant.ended",
        (K.QUOTA_GRANT_ENDED, K.QUOTA_GRANT_REVOKED),
        team,
        _("A grant expired or was revoked."),
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
        ("requested", K.RESERVATION_REQUESTED, _("A reservation was requested.")),
        ("booked", K.RESERVATION_BOOKED, _("A reservation was booked.")),
        ("denied", K.RESERVATION_DENIED, _("A reservation was denied or expired.")),
        ("changed", K.RESERVATION_CHANGED, _("A reservation was changed.")),
        ("cancelled", K.RESERVATION_CANCELLED, _("A reservation was cancelled.")),
        ("begun", K.RESERVATION_BEGUN, _("A reservation has started.")),
        ("ended", K.RESERVATION_ENDED, _("A reservation has ended.")),
        ("missed", K.RESERVATION_MISSED, _("A reservation started without its full capacity.")),
    ):
        yield EventType(f"reservation.{verb}", (kind,), team, summary)
    yield EventType(
        "team.members_changed",
        (K.TEAM_MEMBER_SET, K.TEAM_MEMBER_REMOVED, K.TEAM_OWNER_PASSED),
        team,
        _("A member joined or left the team, or changed role."),
    )
    yield EventType(
        "team.egress_set", (K.TEAM_EGRESS_SET,), team, _("The network access of a team was changed.")
    )
    yield EventType(
        "team.member_shares_set",
        (K.TEAM_MEMBER_SHARES_SET,),
        team,
        _("Turn-taking of a team's members in the queue was turned on or off."),
    )
    yield EventType("team.renamed", (K.TEAM_RENAMED,), team, _("The team was renamed."))
    yield EventType("team.archived", (K.TEAM_ARCHIVED,), team, _("The team was archived."))
    yield EventType("team.restored", (K.TEAM_RESTORED,), team, _("An archived team was restored."))
    yield EventType(
        "team.deletion_started",
        (K.TEAM_DELETION_STARTED,),
        operators,
        _("The deletion of a team has started."),
    )
    yield EventType("team.deleted", (K.TEAM_DELETED,), operators, _("A team was deleted."))
    yield EventType("team.created", (K.TEAM_CREATED,), operators, _("A team was created."))
    yield EventType(
        "gpu_check.failed",
        (K.DEVICE_CHECK_FAILED, K.DEVICE_CHECK_HUNG, K.DEVICE_SCRUB_FAILED, K.DEVICE_SCRUB_HUNG),
        operators,
        _("A GPU failed a check or scrub."),
    )
    yield EventType(
        "gpu_check.degraded",
        (K.DEVICE_CHECK_DEGRADED, K.DEVICE_SCRUB_DEGRADED),
        operators,
        _("A GPU is degraded."),
    )
    yield EventType("gpu_check.passed", (K.DEVICE_CHECK_PASSED,), operators, _("A GPU passed a check."))
    yield EventType(
        "device.state_changed",
        (
            K.DEVICE_ILL, K.DEVICE_WELL, K.DEVICE_UNSEEN, K.DEVICE_DISAPPEARED, K.DEVICE_RETURNED,
            K.DEVICE_REPLACED, K.DEVICE_CORDONED, K.DEVICE_UNCORDONED, K.DEVICE_DRAINED,
        ),
        operators,
        _("A GPU went out of service or returned."),
    )  # fmt: skip
    yield EventType(
        "node.state_changed",
        (K.NODE_ONLINE, K.NODE_OFFLINE, K.NODE_CORDONED, K.NODE_UNCORDONED, K.NODE_DRAINED, K.NODE_APPEARED),
        operators,
        _("A node appeared, went out of service or returned."),
    )
    yield EventType(
        "pool.state_changed",
        (K.POOL_ONLINE, K.POOL_UNREACHABLE, K.POOL_UNKNOWN, K.POOL_CREATED),
        operators,
        _("A pool was added, became reachable or became unreachable."),
    )
    for verb, summary in (
        ("invited", _("A user was invited.")),
        ("joined", _("An invited user signed in for the first time.")),
        ("changed", _("An account was changed.")),
        ("deactivated", _("An account was deactivated.")),
        ("reactivated", _("An account was reactivated.")),
        ("deleted", _("An account was deleted.")),
    ):
        yield EventType(f"user.{verb}", (K(f"user.{verb}"),), administrators, summary)
    yield EventType(
        "session.locked_out",
        (K.SESSION_LOCKED_OUT,),
        administrators,
        _("An account was locked after too many wrong passwords."),
    )


TYPES: dict[str, EventType] = {event_type.name: event_type for event_type in _types()}
TYPE_OF_KIND: dict[str, EventType] = {
    kind.value: event_type for event_type in TYPES.values() for kind in event_type.kinds
}


def types_for(audience: Audience) -> list[EventType]:
    """Return the types available to this audience, in table order."""
    return [event_type for event_type in TYPES.values() if event_type.audience <= audience]
