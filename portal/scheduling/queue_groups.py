"""The queue by reason: requests that wait for the same are one group with one heading and one next step.

Groups are computed by the database in one query, whatever the length of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import BooleanField, Case, CharField, Count, F, Q, QuerySet, Value, When, Window
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Coalesce, RowNumber
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.catalog.environments.codes import EnvironmentCode
from portal.common.formatting import format_resource
from portal.common.reasons.codes import Rule
from portal.people.accounts.models import User
from portal.scheduling import selectors
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.selectors import QueueRow
from portal.workspaces.lifecycle import QueueOutcome
from portal.workspaces.models import Workspace
from portal.workspaces.presenters import ask_url

ROWS_PER_GROUP = 5
"""Rows shown of each group, besides those of the reader."""
OWN_PER_GROUP = 20
SEPARATOR = "|"
TEAM_RULES = frozenset({Rule.TEAM_LIMIT, Rule.USER_CAP, Rule.COHORT, Rule.LEDGER})
RESOURCE_RULES = frozenset(set(Rule) - {Rule.ORDER, Rule.LEDGER})
HEADINGS: dict[str, str | Promise] = {
    Rule.USER_CAP: gettext_lazy("Limit of a member in %(team)s: %(resource)s"),
    Rule.TEAM_LIMIT: gettext_lazy("Limit of %(team)s: %(resource)s"),
    Rule.COHORT: gettext_lazy("Borrowing limit of %(team)s: %(resource)s"),
    Rule.SITE_LIMIT: gettext_lazy("Site limit: %(resource)s"),
    Rule.LEDGER: gettext_lazy("No GPU-hours left: %(team)s"),
    Rule.BOOKING: gettext_lazy("Reserved for other teams: %(resource)s"),
    Rule.ORDER: gettext_lazy("Held for requests ahead in the queue"),
    Rule.CAPACITY: gettext_lazy("No free capacity: %(resource)s"),
    Rule.PLACEMENT: gettext_lazy("No free capacity: %(resource)s"),
    AdmissionCode.HOME_LOST: gettext_lazy("Home folder lost"),
    AdmissionCode.HOME_MOVING: gettext_lazy("Home folder is moving"),
    AdmissionCode.HOME_ARCHIVED: gettext_lazy("Home folder is being archived or restored"),
    AdmissionCode.HOME_AWAY: gettext_lazy("Home folder is archived"),
    EnvironmentCode.ON_ITS_WAY: gettext_lazy("Software is being built"),
}
HOMES = frozenset(
    {
        AdmissionCode.HOME_LOST,
        AdmissionCode.HOME_MOVING,
        AdmissionCode.HOME_ARCHIVED,
        AdmissionCode.HOME_AWAY,
    }
)


class GroupKey(NamedTuple):
    """What the requests of a group wait for: the code of the reason, and what else tells reasons apart."""

    code: str
    resource: str
    needs_approval: bool
    team: str

    def __str__(self) -> str:
        """The key in a URL. The name of the team comes last, because it may have any characters."""
        return SEPARATOR.join((self.code, self.resource, str(int(self.needs_approval)), self.team))

    @classmethod
    def parse(cls, text: str) -> GroupKey | None:
        """Return the key of a URL, or None."""
        parts = text.split(SEPARATOR, 3)
        return cls(parts[0], parts[1], parts[2] == "1", parts[3]) if len(parts) == 4 else None


KEY = ("by_code", "by_resource", "by_approval", "by_team")


@dataclass(frozen=True, slots=True)
class NextStep:
    """A link that leads on from a reason."""

    label: str
    url: str


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that wait for the same. `count` of them in all; `rows` are the first, and the reader's own."""

    key: GroupKey
    count: int
    rows: list[QueueRow]
    step: NextStep | None

    @property
    def heading(self) -> str:
        """What they wait for, in a few words."""
        heading = HEADINGS.get(self.key.code)
        if heading is None:
            return self.rows[0].blocker_text or _("Checking…")
        resource = format_resource(self.key.resource) if self.key.resource else _("any resource")
        text = str(heading) % {"team": self.key.team, "resource": resource}
        return _("Needs approval: %(reason)s") % {"reason": text} if self.key.needs_approval else text

    @property
    def explanation(self) -> str:
        """The whole reason, of the first request. Others differ in their size."""
        return self.rows[0].blocker_text if self.key.code in HEADINGS else ""


def keyed(rows: QuerySet[Workspace]) -> QuerySet[Workspace]:
    """Return the rows with the columns of their `GroupKey`."""
    reason = "queue_entry__reason"
    params = KeyTransform("params", reason)
    text = CharField()

    def param(name: str, rules: Iterable[Rule]) -> Case:
        value = Coalesce(KeyTextTransform(name, params), Value(""))
        return Case(When(by_code__in=rules, then=value), default=Value(""), output_field=text)

    code = Coalesce(KeyTextTransform("code", reason), Value(""), output_field=text)
    return rows.annotate(by_code=code).annotate(
        by_resource=param("resource", RESOURCE_RULES),
        by_approval=Case(
            When(queue_entry__outcome=QueueOutcome.NEEDS_APPROVAL, then=Value(True)),
            default=Value(False),
            output_field=BooleanField(),
        ),
        by_team=param("team", TEAM_RULES),
    )


def of_key(rows: QuerySet[Workspace], key: GroupKey) -> QuerySet[Workspace]:
    """Return the rows of one group."""
    return keyed(rows).filter(**dict(zip(KEY, key, strict=True)))


def groups(actor: User, waiting: QuerySet[Workspace]) -> list[Group]:
    """Return the groups of these rows: the one that starts next first, those that need approval last."""
    window: dict[str, Any] = {"partition_by": [F(name) for name in KEY]}
    ranked = (
        keyed(waiting)
        .annotate(
            group_size=Window(Count("pk"), **window),
            rank=Window(RowNumber(), order_by=selectors.QUEUE_ORDER, **window),
        )
        .filter(Q(rank__lte=ROWS_PER_GROUP) | Q(owner=actor))
        .order_by(*selectors.QUEUE_ORDER)
    )
    keys: dict[GroupKey, list[Any]] = {}
    sizes: dict[GroupKey, int] = {}
    for pk, size, rank, owner, *parts in ranked.values_list("pk", "group_size", "rank", "owner", *KEY):
        key = GroupKey(*parts)
        sizes[key] = size
        shown = keys.setdefault(key, [])
        if rank <= ROWS_PER_GROUP or (owner == actor.pk and len(shown) < ROWS_PER_GROUP + OWN_PER_GROUP):
            shown.append(pk)
    rows = selectors.waiting().filter(pk__in=[pk for shown in keys.values() for pk in shown])
    entries = {entry.workspace.pk: entry for entry in selectors.entries(actor, list(rows))}
    present = (
        (key, [entries[pk] for pk in shown if pk in entries]) for key, shown in keys.items()
    )
    return [
        Group(key, sizes[key], found, next_step(actor, key, found)) for key, found in present if found
    ]


def group_of(actor: User, key: GroupKey, rows: Iterable[Workspace], count: int) -> Group | None:
    """Return a page of one group, or None without rows."""
    found = selectors.entries(actor, list(rows))
    return Group(key, count, found, next_step(actor, key, found)) if found else None


def next_step(actor: User, key: GroupKey, rows: list[QueueRow]) -> NextStep | None:
    """Return what the reader can do about the reason, or None."""
    if key.needs_approval and (actor.operates or actor.is_approver):
        return NextStep(_("View requests"), reverse("inbox:inbox"))
    own = next((row for row in rows if row.own), None)
    if own is not None and (url := ask_url(actor, own.workspace)):
        return NextStep(_("Ask for more"), url)
    if key.code in (Rule.TEAM_LIMIT, Rule.USER_CAP, Rule.COHORT, Rule.SITE_LIMIT) and actor.operates:
        return NextStep(_("View quotas"), reverse("quotas:limits"))
    if key.code == Rule.BOOKING:
        return NextStep(_("View calendar"), reverse("reservations:calendar"))
    if key.code in (Rule.CAPACITY, Rule.PLACEMENT) and key.resource.startswith(("gpu:", "mig:")):
        return NextStep(_("View GPUs"), reverse("fleet:gpus"))
    if key.code in HOMES and own is not None:
        return NextStep(_("View home folders"), reverse("workspaces:homes"))
    return None
