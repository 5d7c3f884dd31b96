"""Groups the queue by reason: requests with the same reason share a heading and a next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common.formatting import format_resource
from portal.common.reasons.codes import Rule
from portal.people.accounts.models import User
from portal.scheduling import selectors
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.selectors import QueueRow
from portal.scheduling.wording.waiting import OTHER_LABEL, WAITING_LABELS
from portal.workspaces.lifecycle import QueueOutcome
from portal.workspaces.models import Workspace
from portal.workspaces.presenters import ask_url

ROWS_PER_GROUP = 5
"""Number of rows shown of each group, besides the reader's own."""
OWN_PER_GROUP = 20
SEPARATOR = "|"
TEAM_RULES = frozenset({Rule.TEAM_LIMIT, Rule.USER_CAP, Rule.COHORT, Rule.LEDGER})
RESOURCE_RULES = frozenset(set(Rule) - {Rule.ORDER, Rule.LEDGER})
HOMES = frozenset(
    {
        AdmissionCode.HOME_LOST,
        AdmissionCode.HOME_MOVING,
        AdmissionCode.HOME_ARCHIVED,
        AdmissionCode.HOME_AWAY,
    }
)


class GroupKey(NamedTuple):
    """Key of a group: the code of its reason, and the params that distinguish reasons with this code."""

    code: str
    resource: str
    needs_approval: bool
    team: str

    def __str__(self) -> str:
        """Return the key for a URL. The team's name comes last, because it may contain any character."""
        return SEPARATOR.join((self.code, self.resource, str(int(self.needs_approval)), self.team))

    @classmethod
    def parse(cls, text: str) -> GroupKey | None:
        """Parse the key in a URL. Returns None if it is invalid."""
        parts = text.split(SEPARATOR, 3)
        return cls(parts[0], parts[1], parts[2] == "1", parts[3]) if len(parts) == 4 else None


@dataclass(frozen=True, slots=True)
class NextStep:
    """A link to a page that helps with a reason."""

    label: str
    url: str


@dataclass(frozen=True, slots=True)
class Group:
    """Requests with the same reason. `count` is their number; `rows` are the first and the reader's own."""

    key: GroupKey
    count: int
    rows: list[QueueRow]
    step: NextStep | None

    @property
    def heading(self) -> str:
        """What the requests wait for, in a few words: “Team quota in use: Vision, H100”."""
        label = WAITING_LABELS.get(self.key.code)
        if label is None:
            return self.rows[0].blocker_text or str(OTHER_LABEL)
        resource = format_resource(self.key.resource) if self.key.resource else ""
        about = ", ".join(part for part in (self.key.team, resource) if part)
        text = f"{label}: {about}" if about else str(label)
        return _("Needs approval: %(reason)s") % {"reason": text} if self.key.needs_approval else text

    @property
    def explanation(self) -> str:
        """The full reason of the first request. Those of other requests differ in size."""
        return self.rows[0].blocker_text if self.key.code in WAITING_LABELS else ""


@dataclass(frozen=True, slots=True)
class Members:
    """The ids of a group's requests in queue order, and the ids of the reader's own requests."""

    ids: list[UUID]
    own: set[UUID]

    @property
    def shown(self) -> list[UUID]:
        """The ids of the first requests and of the reader's own."""
        first = self.ids[:ROWS_PER_GROUP]
        later = [pk for pk in self.ids[ROWS_PER_GROUP:] if pk in self.own]
        return [*first, *later[:OWN_PER_GROUP]]


def members(actor: User, waiting: QuerySet[Workspace]) -> dict[GroupKey, Members]:
    """Return the groups of these rows, in the order of their first requests.

    One query reads the whole queue. Each distinct reason is parsed once, because many are equal.
    """
    columns = waiting.select_related(None).annotate(reason_text=Cast("queue_entry__reason", TextField()))
    keys: dict[tuple[str, str], GroupKey] = {}
    groups_by_key: dict[GroupKey, Members] = {}
    for pk, owner, outcome, text in columns.values_list(
        "pk", "owner_id", "queue_entry__outcome", "reason_text"
    ).iterator(chunk_size=2000):
        key = keys.get((outcome, text))
        if key is None:
            key = keys[outcome, text] = _key(outcome, text)
        group = groups_by_key.setdefault(key, Members([], set()))
        group.ids.append(pk)
        if owner == actor.pk:
            group.own.add(pk)
    return groups_by_key


def _key(outcome: str, text: str) -> GroupKey:
    stored: dict[str, Any] = msgspec.json.decode(text)
    code, params = str(stored.get("code", "")), stored.get("params") or {}
    return GroupKey(
        code=code,
        resource=str(params.get("resource", "")) if code in RESOURCE_RULES else "",
        needs_approval=outcome == QueueOutcome.NEEDS_APPROVAL,
        team=str(params.get("team", "")) if code in TEAM_RULES else "",
    )


def groups(
    actor: User, shown: Mapping[GroupKey, Sequence[UUID]], counts: Mapping[GroupKey, int]
) -> list[Group]:
    """Return groups with these rows, without rows that have left the queue meanwhile."""
    rows = selectors.waiting().filter(pk__in=[pk for ids in shown.values() for pk in ids])
    entries = {entry.workspace.pk: entry for entry in selectors.entries(actor, list(rows))}
    present = ((key, [entries[pk] for pk in ids if pk in entries]) for key, ids in shown.items())
    return [
        Group(key, counts[key], group_entries, next_step(actor, key, group_entries))
        for key, group_entries in present
        if group_entries
    ]


def next_step(actor: User, key: GroupKey, rows: list[QueueRow]) -> NextStep | None:
    """Return the reader's next step for the reason, or None."""
    if key.needs_approval and (actor.operates or actor.is_approver):
        return NextStep(_("View requests"), reverse("inbox:inbox"))
    own = next((row for row in rows if row.own), None)
    if own is not None and (url := ask_url(actor, own.workspace)):
        return NextStep(_("Ask for more"), url)
    if key.code in (Rule.TEAM_LIMIT, Rule.USER_CAP, Rule.COHORT, Rule.SITE_LIMIT) and actor.operates:
        return NextStep(_("View quotas"), reverse("quotas:matrix"))
    if key.code == Rule.BOOKING:
        return NextStep(_("View calendar"), reverse("reservations:calendar"))
    if key.code in (Rule.CAPACITY, Rule.PLACEMENT) and key.resource.startswith(("gpu:", "mig:")):
        return NextStep(_("View GPUs"), reverse("fleet:gpus"))
    if key.code in HOMES and own is not None:
        return NextStep(_("View home folders"), reverse("workspaces:homes"))
    return None
