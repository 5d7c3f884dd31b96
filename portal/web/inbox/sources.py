"""Sources of inbox items. Each source uses the selectors of one package.

A source has one query for counting, sorting and display, so that the badge and the page agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.formatting import format_date, format_time_span
from portal.fleet.inventory import cordons, lost_capacity
from portal.fleet.inventory.models import Device, Node, Pool
from portal.people.accounts import approvers
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import Role, User
from portal.people.join_requests import selectors as joins
from portal.people.join_requests.models import JoinRequest
from portal.quota.requests import selectors as quota_requests
from portal.quota.requests.models import QuotaRequest, RequestKind
from portal.quota.requests.presenters import RequestCard
from portal.quota.reservations import selectors as reservations
from portal.quota.reservations import services as reservation_services
from portal.quota.reservations import slots
from portal.quota.reservations.models import Reservation
from portal.quota.reservations.presenters import format_amounts
from portal.web.inbox.duties import Duties
from portal.web.inbox.items import Action, Item, ItemKind, SortKey

MAX_KEYS = 2000
"""Maximum number of items per source. Only the oldest are sorted."""
SOON = timedelta(days=1)
"""Items that expire within this time are urgent."""
TOKEN_DAYS = 7


class Source(ABC):
    """One kind of inbox items. `columns` are the start of waiting, and the values for `is_urgent`."""

    name: ClassVar[str]
    kind: ClassVar[ItemKind]
    columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rows(self, actor: User) -> QuerySet[Any]:
        """Return the rows that wait for the actor."""

    @abstractmethod
    def concerns(self, duties: Duties) -> bool:
        """Return whether such items can wait for an actor with these duties."""

    def counted(self, actor: User) -> QuerySet[Any]:
        """Return the same rows for counting."""
        return self.rows(actor)

    @abstractmethod
    def is_urgent(self, values: Sequence[Any], now: datetime) -> bool:
        """Return whether a row with these values of `columns` is urgent."""

    @abstractmethod
    def item(self, actor: User, key: SortKey, row: Any) -> Item:
        """Return the row as an item."""

    def keys(self, actor: User, now: datetime) -> list[SortKey]:
        """Return the keys of all rows with one query."""
        rows = self.rows(actor).values_list("pk", *self.columns)[:MAX_KEYS]
        return [
            SortKey(not self.is_urgent(values[1:], now), values[1], self.name, str(values[0]))
            for values in rows
        ]

    def items(self, actor: User, keys: Iterable[SortKey]) -> dict[SortKey, Item]:
        """Return the still existing items of these keys, with one query."""
        keys_by_pk = {key.pk: key for key in keys}
        if not keys_by_pk:
            return {}
        rows = self.rows(actor).filter(pk__in=list(keys_by_pk))
        return {(key := keys_by_pk[str(row.pk)]): self.item(actor, key, row) for row in rows}


def _is_soon(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment - now < SOON


def _role_of(actor: User) -> str:
    """Return the reason why the actor decides about other teams' requests."""
    if approvers.is_approver(actor):
        return _("You decide requests for quota and capacity.")
    if actor.operates:
        return _("You operate the pools.")
    return _("You are a delegate.")


class QuotaSource(Source):
    name, kind = "quota", ItemKind.QUOTA
    columns = ("created_at", "until", "workspace_id")

    def concerns(self, duties: Duties) -> bool:
        return duties.operates or duties.decides or duties.owns

    def rows(self, actor: User) -> QuerySet[QuotaRequest]:
        return quota_requests.requests_to_decide(actor)

    def is_urgent(self, values: Sequence[Any], now: datetime) -> bool:
        _since, until, workspace = values
        return workspace is not None or _is_soon(until, now)

    def item(self, actor: User, key: SortKey, row: QuotaRequest) -> Item:
        summary = RequestCard(row, None, may_decide=True, may_revoke=False, may_cancel=False)
        cap = row.kind == RequestKind.MEMBER_CAP
        reason = (
            _("Decided by owners of %(team)s and operators.") % {"team": row.team.name}
            if cap
            else _role_of(actor)
        )
        detail = row.note if row.workspace is None else f"{row.note} · {summary.workspace_line}"
        return Item(
            key,
            self.kind,
            row.requester.username,
            _("requests %(requested)s more for %(whose)s")
            % {"requested": summary.requested_text, "whose": summary.limit_text},
            detail,
            reason,
            row.until,
            reverse("quota_requests:request", args=[row.pk]),
            _("View details"),
        )


class ReservationSource(Source):
    name, kind = "reservation", ItemKind.RESERVATION
    columns = ("created_at", "starts_at")

    def concerns(self, duties: Duties) -> bool:
        return duties.operates or duties.decides

    def rows(self, actor: User) -> QuerySet[Reservation]:
        return reservations.reservations_to_decide(actor)

    def is_urgent(self, values: Sequence[Any], now: datetime) -> bool:
        return _is_soon(values[1], now)

    def item(self, actor: User, key: SortKey, row: Reservation) -> Item:
        params = {
            "what": format_amounts(slots.subtract_models_from_total(row.amounts)),
            "team": row.team.name,
            "span": format_time_span(row.starts_at, row.ends_at),
        }
        return Item(
            key,
            self.kind,
            row.created_by.username if row.created_by else row.team.name,
            _("requests %(what)s for %(team)s, %(span)s") % params,
            f"{row.title}: {row.note}" if row.note else row.title,
            _role_of(actor),
            row.starts_at,
            reservation_services.url(row),
            _("View details"),
        )


class JoinSource(Source):
    name, kind = "join", ItemKind.JOIN
    columns = ("created_at", "expires_at")

    def concerns(self, duties: Duties) -> bool:
        return duties.operates or duties.owns

    def rows(self, actor: User) -> QuerySet[JoinRequest]:
        return joins.requests_to_decide(actor)

    def is_urgent(self, values: Sequence[Any], now: datetime) -> bool:
        return _is_soon(values[1], now)

    def item(self, actor: User, key: SortKey, row: JoinRequest) -> Item:
        url = reverse("join_requests:request", args=[row.pk])
        params = {"username": row.requester.username, "team": row.team_name}
        approve = Action(
            _("Approve as member"),
            "check",
            f"{url}decide/",
            (("do", "approve"), ("role", Role.MEMBER.value)),
            _("%(username)s for %(team)s") % params,
        )
        return Item(
            key,
            self.kind,
            row.requester.username,
            _("requests to join %(team)s") % params,
            row.message,
            _("Decided by owners of %(team)s, or by operators if the team has no owner.") % params,
            row.expires_at,
            url,
            _("Choose a role, or deny"),
            (approve,),
        )


class _CapacitySource(Source):
    kind = ItemKind.CAPACITY
    columns = ("since", "held")

    def concerns(self, duties: Duties) -> bool:
        return duties.operates

    def is_urgent(self, values: Sequence[Any], now: datetime) -> bool:
        return bool(values[1])

    def made(
        self, key: SortKey, subject: str, title: str, detail: str, url: str, simulated: bool, **more: Any
    ) -> Item:
        reason = _("You operate the pools.") + (" " + _("A workspace is affected.") if not key.later else "")
        label = _("View")
        return Item(
            key, self.kind, subject, title, detail, reason, None, url, label, simulated=simulated, **more
        )

    def cordon_action(self, url: str, name: str, note: str) -> Action:
        """Return the action that cordons the device or node, which resolves the item."""
        return Action(_("Keep out of service"), "lock", url, (("do", "cordon"), ("note", note[:200])), name)


class DeviceSource(_CapacitySource):
    name = "device"

    def rows(self, actor: User) -> QuerySet[Device]:
        return lost_capacity.devices(actor)

    def counted(self, actor: User) -> QuerySet[Device]:
        return lost_capacity.lost_devices(actor)

    def item(self, actor: User, key: SortKey, row: Device) -> Item:
        name, url = cordons.display_name(row), cordons.url_of(row)
        actions = [self.cordon_action(url, name, row.cordon_reason or row.health_note)]
        if not row.present:
            title, detail = _("has disappeared"), row.model
        else:
            title = _("has failed") if not row.healthy else _("was cordoned by a check")
            detail = row.health_note or row.cordon_reason
            if not row.checking:
                checks = reverse("gpu_checks:device-checks", args=[row.pk])
                actions.insert(0, Action(_("Check again"), "shield-check", checks, (), name))
        simulated = row.node.pool.simulated
        return self.made(key, name, title, detail, url, simulated, actions=tuple(actions))


class NodeSource(_CapacitySource):
    name = "node"

    def rows(self, actor: User) -> QuerySet[Node]:
        return lost_capacity.nodes(actor)

    def counted(self, actor: User) -> QuerySet[Node]:
        return lost_capacity.lost_nodes(actor)

    def item(self, actor: User, key: SortKey, row: Node) -> Item:
        url = reverse("fleet:node", args=[row.pk])
        detail = _("No workspaces there. Pool: %(pool)s.") % {"pool": row.pool.name}
        actions = (self.cordon_action(url, row.name, ""),)
        return self.made(key, row.name, _("is offline"), detail, url, row.pool.simulated, actions=actions)


class PoolSource(_CapacitySource):
    name = "pool"

    def rows(self, actor: User) -> QuerySet[Pool]:
        return lost_capacity.pools(actor)

    def counted(self, actor: User) -> QuerySet[Pool]:
        return lost_capacity.lost_pools(actor)

    def item(self, actor: User, key: SortKey, row: Pool) -> Item:
        url = reverse("fleet:pool", args=[row.slug])
        return self.made(key, row.name, _("does not respond"), row.state_message, url, row.simulated)


class TokenSource(Source):
    """Inbox items for tokens in use that expire soon."""

    name, kind = "token", ItemKind.TOKEN
    columns = ("created_at", "expires_at")

    def concerns(self, duties: Duties) -> bool:
        return True

    def rows(self, actor: User) -> QuerySet[Any]:
        now = timezone.now()
        soon = Q(expires_at__gt=now, expires_at__lte=now + timedelta(days=TOKEN_DAYS))
        return accounts.tokens_of(actor).filter(soon, last_used_at__gte=now - timedelta(days=TOKEN_DAYS))

    def is_urgent(self, values: Sequence[Any], now: datetime) -> bool:
        return _is_soon(values[1], now)

    def item(self, actor: User, key: SortKey, row: Any) -> Item:
        params = {"name": row.name, "date": format_date(row.expires_at)}
        return Item(
            key,
            self.kind,
            _("Your token"),
            _("“%(name)s” expires on %(date)s") % params,
            _("The token is in use. Create another one, then revoke this one."),
            _("This is your token."),
            row.expires_at,
            reverse("accounts:tokens"),
            _("View your tokens"),
        )


SOURCES: tuple[Source, ...] = (
    QuotaSource(),
    ReservationSource(),
    JoinSource(),
    DeviceSource(),
    NodeSource(),
    PoolSource(),
    TokenSource(),
)


def sources_of_kinds(kinds: Collection[str]) -> list[Source]:
    """Return the sources of these kinds, or all sources if `kinds` is empty."""
    return [source for source in SOURCES if not kinds or source.kind in kinds]
