"""Warns users about unused homes, archives the homes, and decides which may be deleted.

All decisions use observed seconds (`engine/unused`). A pass and its notices are one transaction. Each home
that is due is archived in its own transaction, which decides again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet, Subquery
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import InvalidInput, NotAllowed, NotFound, PortalError, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.formatting import format_number
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Allocation, PlacementLock
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_administrator
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.effective import DAY_S, PolicySet, policy_set
from portal.reclaim.engine.unused import HomeIdleState, HomeStep, HomeVerdict, advance, decide_home
from portal.reclaim.models import HomeStay, LastPass
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.homes import away
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.moves import may_move
from portal.workspaces.models import HomeArchive, HomePlace
from provisioning.types import home_key

log = logging.getLogger(__name__)

AT_ONCE = 500
MAX_WARNED = 200
MAX_BEGUN = 20
"""Maximum number of homes per pass. A machine archives one home at a time; the rest follow later."""
URL = "/homes/"


SeenHome = Any
"""A `HomePlace` as annotated by `archivable_homes`: its archive (`away`), and whether one is being
created (`goes_on`).
"""


@dataclass(frozen=True, slots=True)
class HomePassReport:
    """Number of users warned, notices withdrawn, and homes whose archiving began."""

    warned: int = 0
    withdrawn: int = 0
    begun: int = 0


def archivable_homes() -> QuerySet[Any]:
    """Return homes that can be archived, with their archive and whether one is being created."""
    same = {"owner": OuterRef("owner"), "team": OuterRef("team"), "node": OuterRef("node")}
    archived = HomeArchive.objects.filter(**same, away_at__isnull=False).order_by().values("pk")[:1]
    goes_on = HomeArchive.objects.filter(**same, empties=True, open=True, away_at=None)
    rows = HomePlace.objects.filter(owner__deleted_at=None, node__retired=False)
    rows = rows.select_related("owner", "team", "pool", "node")
    return rows.annotate(away=Subquery(archived), goes_on=Exists(goes_on))


def run() -> HomePassReport:
    """Run one pass over all homes."""
    now = timezone.now()
    with transaction.atomic():
        elapsed_s = _elapsed_s(now)
        rules = policy_set()
        verdicts = [
            (place, verdict_of(place, idle_state, rules)) for place, idle_state in _advance_homes(elapsed_s)
            if not place.goes_on
        ]  # fmt: skip
        steps: dict[HomeStep, list[tuple[SeenHome, HomeVerdict]]] = {step: [] for step in HomeStep}
        for place, verdict in verdicts:
            steps[verdict.step].append((place, verdict))
        warned = steps[HomeStep.WARN][:MAX_WARNED]
        _warn(warned, now)
        withdrawn = [place.pk for place, _verdict in steps[HomeStep.WITHDRAW]]
        for chunk in _chunks(withdrawn):
            HomeStay.objects.filter(pk__in=chunk).update(warned_s=None, warned_at=None)
    due_place_ids = [place.pk for place, _verdict in steps[HomeStep.TAKE] if place.away is None]
    begun = sum(archive_if_due(pk) for pk in due_place_ids[:MAX_BEGUN])
    return HomePassReport(len(warned), len(withdrawn), begun)


def idle_state_of(stay: HomeStay) -> HomeIdleState:
    return HomeIdleState(stay.archive is not None, stay.unused_s, stay.warned_s)


def verdict_of(place: SeenHome, idle_state: HomeIdleState, rules: PolicySet) -> HomeVerdict:
    return decide_home(idle_state, rules.home_rules(place.pool_id, place.team_id))


def _elapsed_s(now: datetime) -> float:
    """Return the seconds since the last pass. Locks the row, so that no time is counted twice."""
    last, new = LastPass.objects.select_for_update().get_or_create(pk=LastPass.HOMES, defaults={"at": now})
    LastPass.objects.filter(pk=LastPass.HOMES).update(at=now)
    return 0.0 if new else (now - last.at).total_seconds()


def _advance_homes(elapsed_s: float) -> list[tuple[SeenHome, HomeIdleState]]:
    """Update and store the state of each home, and return it."""
    places = [place for place in archivable_homes() if home_places.has_separate_homes(place.pool)]
    stays = {stay.pk: stay for stay in HomeStay.objects.select_for_update()}
    open_ = Allocation.objects.filter(released_at=None)
    used_now = set(open_.order_by().values_list("workspace__owner", "node__pool").distinct())
    advanced: list[tuple[SeenHome, HomeIdleState]] = []
    fresh, changed, in_use = [], [], []
    for place in places:
        stay = stays.get(place.pk)
        if stay is None:
            # Counting starts with the first pass, because earlier time was not observed.
            fresh.append(HomeStay(place=place, archive=place.away, used_at=place.used_at))
            advanced.append((place, HomeIdleState(place.away is not None)))
            continue
        uses = (place.owner_id, place.pool_id) in used_now
        moved = (place.used_at, place.away) != (stay.used_at, stay.archive)
        # The time starts again for a new archive.
        idle_state = advance(
            idle_state_of(stay), elapsed_s, used=uses or moved, archived=place.away is not None
        )
        advanced.append((place, idle_state))
        if moved:
            stay.used_at, stay.archive = place.used_at, place.away
            stay.unused_s, stay.warned_s, stay.warned_at = 0.0, None, None
            changed.append(stay)
        elif uses:
            in_use.append(stay.pk)
    watched = advance(HomeIdleState(), elapsed_s, used=False, archived=False).unused_s
    if watched:
        HomeStay.objects.update(unused_s=F("unused_s") + watched)
        HomeStay.objects.filter(warned_s__isnull=False).update(warned_s=F("warned_s") + watched)
    for chunk in _chunks(in_use):
        HomeStay.objects.filter(pk__in=chunk).update(unused_s=0, warned_s=None, warned_at=None)
    fields = ["used_at", "archive", "unused_s", "warned_s", "warned_at"]
    HomeStay.objects.bulk_update(changed, fields, batch_size=AT_ONCE)
    HomeStay.objects.bulk_create(fresh, batch_size=AT_ONCE, ignore_conflicts=True)
    return advanced


def _warn(warned: Sequence[tuple[SeenHome, HomeVerdict]], now: datetime) -> None:
    for chunk in _chunks([place.pk for place, _verdict in warned]):
        HomeStay.objects.filter(pk__in=chunk).update(warned_s=0, warned_at=now)
    for place, verdict in warned:
        left = format_days(verdict.left_s or 0)
        prefix = f"notified {place.owner.username} that {_home_label(place)} "
        if place.away is None:
            _record(place, SYSTEM, AuditKind.USER_HOME_UNUSED_WARNED, f"{prefix}will be archived in {left}")
        else:
            _record(place, SYSTEM, AuditKind.USER_HOME_UNUSED_WARNED, f"{prefix}may be deleted in {left}")
    events.notify_each(kind="home.unused_warned", notes=[_note(place, verdict) for place, verdict in warned])


def _note(place: SeenHome, verdict: HomeVerdict) -> events.Note:
    named = {
        "team": place.team.name,
        "left": format_days(verdict.left_s or 0),
        "limit": format_days(verdict.limit_s or 0),
    }
    if place.away is None:
        title = _("Your home folder in %(team)s is archived in %(left)s")
        body = _(
            "Home folders are archived after %(limit)s without use and restored when needed. To "
            "keep it, open Home folders, or start a workspace."
        )
    else:
        title = _("Your archived home folder in %(team)s can be deleted in %(left)s")
        body = _(
            "Administrators can permanently delete it after %(limit)s in the archive. To keep "
            "it, open Home folders."
        )
    return events.Note(user=place.owner, title=title % named, body=body % named, url=URL)


def archive_if_due(place_id: int) -> bool:
    """Start archiving a home if that is still due once locked. Returns whether archiving began."""
    try:
        with transaction.atomic():
            PlacementLock.hold()
            stay = HomeStay.objects.select_for_update().get(pk=place_id)
            place = archivable_homes().get(pk=place_id)
            if place.goes_on or (place.used_at, place.away) != (stay.used_at, stay.archive):
                return False
            verdict = verdict_of(place, idle_state_of(stay), policy_set())
            if verdict.step is not HomeStep.TAKE or place.away is not None:
                return False
            away.begin(place_id=place_id)
            # If archiving fails, the user is warned again with the full notice period.
            HomeStay.objects.filter(pk=place_id).update(warned_s=None, warned_at=None)
            _record(
                place,
                SYSTEM,
                AuditKind.USER_HOME_UNUSED_TAKEN,
                f"archived {_home_label(place)}, which was unused",
            )
            return True
    except (HomeStay.DoesNotExist, HomePlace.DoesNotExist, PortalError) as error:
        log.info("did not archive home %s: %s", place_id, error)
        return False
    except Exception:
        # A failure must not block other homes; the next pass retries.
        log.exception("could not archive home %s", place_id)
        return False


# --- actions of users -------------------------------------------------------------------------------------


def visible_homes(actor: User) -> QuerySet[Any]:
    """Return the actor's own homes, or all for users who see all."""
    rows = archivable_homes().filter(pool__deleted_at=None)
    return rows if actor.sees_all else rows.filter(owner=actor)


def home(actor: User, place_id: int) -> SeenHome:
    """Return a visible home. Raises `NotFound`."""
    seen_home: SeenHome | None = visible_homes(actor).filter(pk=place_id).first()
    if seen_home is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    return seen_home


@transaction.atomic
def keep_home(*, actor: User, place_id: int) -> SeenHome:
    """Keep a home: record it as used now, and cancel archiving in progress.

    For an archived home, keeps the archive. For its user and operators. Raises `NotFound`, `NotAllowed`.
    """
    place = home(actor, place_id)
    if not may_move(actor, place.owner_id):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": place.owner.username}))
    HomeStay.objects.select_for_update().filter(pk=place_id).first()
    away.keep_home(place_id=place_id)
    row = home(actor, place_id)
    HomeStay.objects.filter(pk=place_id).update(
        used_at=row.used_at, archive=row.away, unused_s=0, warned_s=None, warned_at=None
    )
    _record(row, actor, AuditKind.USER_HOME_UNUSED_KEPT, f"kept {_home_label(row)}")
    return row


def restore(*, actor: User, place_id: int) -> SeenHome:
    """Restore an archived home. Raises the errors of `away.restore`."""
    away.restore(actor=actor, place_id=place_id)
    return home(actor, place_id)


def may_be_deleted(place: SeenHome, stay: HomeStay | None, rules: PolicySet) -> bool:
    """Return whether the archive is old enough and the user's full notice period is over."""
    if place.away is None or stay is None or stay.archive != place.away:
        return False
    return verdict_of(place, idle_state_of(stay), rules).step is HomeStep.TAKE


@transaction.atomic
def delete(*, actor: User, place_id: int, confirm: str, reason: str) -> None:
    """Delete an archived home permanently. `confirm` must be its name; `reason` is recorded.

    For administrators. Raises `NotAllowed`, `NotFound`, `InvalidInput`, and `StateConflict` before it is due.
    """
    require_administrator(actor)
    place = home(actor, place_id)
    stay = HomeStay.objects.select_for_update().filter(pk=place_id).first()
    if not may_be_deleted(place, stay, policy_set()):
        code = LifetimeCode.HOME_DELETE_NOT_DUE
        raise StateConflict(Reason(code), code=code)
    name = name_of(place)
    if strip_nul(confirm).strip() != name:
        wrong = Reason(LifetimeCode.HOME_NOT_NAMED, {"given": strip_nul(confirm)[:100], "home": name})
        raise InvalidInput(wrong, errors={"confirm": [wrong]})
    away.delete_only_copy(actor=actor, place_id=place_id, reason=reason)


def name_of(place: HomePlace) -> str:
    """Return the name that users type to confirm: team and user."""
    return home_key(place.team.slug, place.owner.username)


def format_days(seconds: float) -> str:
    """Format a duration in whole days."""
    days = round(seconds / DAY_S)
    return ngettext("%(number)s day", "%(number)s days", days) % {"number": format_number(days)}


def stays_by_home(places: Iterable[HomePlace]) -> dict[int, HomeStay]:
    """Return the stays by the homes' primary keys; one query."""
    return {stay.pk: stay for stay in HomeStay.objects.filter(pk__in=[place.pk for place in places])}


def count_due(rules: PolicySet, *, pool: UUID | None = None, team: UUID | None = None) -> tuple[int, int]:
    """Count the homes of a pool or team (default: all), and those that would be due for a warning at once."""
    rows: Any = archivable_homes().filter(pool__deleted_at=None)
    rows = rows.filter(pool=pool) if pool is not None else rows
    rows = rows.filter(team=team) if team is not None else rows
    present_homes = [
        place for place in rows if place.away is None and home_places.has_separate_homes(place.pool)
    ]
    stays = stays_by_home(present_homes)
    due_count = 0
    for place in present_homes:
        stay = stays.get(place.pk)
        idle_state = (
            HomeIdleState() if stay is None or stay.archive else HomeIdleState(unused_s=stay.unused_s)
        )
        due_count += verdict_of(place, idle_state, rules).step is HomeStep.WARN
    return len(present_homes), due_count


def _home_label(place: HomePlace) -> str:
    return f"the home folder {name_of(place)} on {place.node.name}"


def _record(place: HomePlace, actor: User | SystemActor, kind: AuditKind, message: str) -> None:
    events.record(
        actor=actor,
        kind=kind,
        message=message,
        team=place.team,
        pool=place.pool,
        targets=[Target(TargetKind.USER, str(place.owner_id))],
        data={"owner": place.owner.username, "home": name_of(place), "node": place.node.name},
    )


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[first : first + AT_ONCE] for first in range(0, len(items), AT_ONCE))
