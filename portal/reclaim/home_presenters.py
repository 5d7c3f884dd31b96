"""Presents unused and archived homes for pages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.people.accounts.models import User
from portal.reclaim import homes
from portal.reclaim.effective import PolicySet, policy_set
from portal.reclaim.homes import format_days
from portal.reclaim.models import HomeStay
from portal.workspaces.homes.moves import may_move
from portal.workspaces.models import HomeArchive, HomeArchiveState, HomePlace


@dataclass(frozen=True, slots=True)
class HomeLine:
    """A home's unused or archived state for pages.

    - `text`: value, threshold and time left as text; `after`: the next step.
    - `warned`: its user was notified of the next step, which is taken at `due_at` at the earliest.
    - `goes_on`, `progress`, `percent`: the operation in progress.
    - `problem`: why a restore failed.
    - `deletable`: the home can be deleted now.
    """

    place: HomePlace
    archive: HomeArchive | None
    text: str
    after: str
    warned: bool
    goes_on: str
    progress: str
    percent: int | None
    problem: str
    used_s: float
    limit_s: int | None
    due_at: datetime | None
    deletable: bool
    may_keep: bool
    may_restore: bool

    @property
    def archived(self) -> bool:
        return self.archive is not None and self.archive.away_at is not None

    @property
    def matters(self) -> bool:
        """Whether to show the state to the user on every page with the home."""
        return self.warned or self.archive is not None


def lines(actor: User, places: Iterable[HomePlace], *, rules: PolicySet | None = None) -> dict[int, HomeLine]:
    """Return the lines by the homes' primary keys, with a constant number of queries.

    Omits homes without a limit or archive.
    """
    rows: list[Any] = list(places)
    if not all(hasattr(place, "goes_on") for place in rows):
        rows = list(homes.archivable_homes().filter(pk__in=[place.pk for place in rows]))
    rules = rules or policy_set()
    stays = homes.stays_by_home(rows)
    archives: dict[Any, HomeArchive] = {}
    users = {row.owner_id for row in rows if row.away is not None or row.goes_on}
    for archive in HomeArchive.objects.filter(owner__in=users).order_by("asked_at"):
        if archive.away_at is not None or (archive.empties and archive.open):
            archives[archive.owner_id, archive.team_id, archive.node_id] = archive
    by_home = {}
    for row in rows:
        own = archives.get((row.owner_id, row.team_id, row.node_id))
        line = _line(actor, row, stays.get(row.pk), own, rules)
        if line is not None:
            by_home[row.pk] = line
    return by_home


def _line(
    actor: User, place: homes.SeenHome, stay: HomeStay | None, archive: HomeArchive | None, rules: PolicySet
) -> HomeLine | None:
    home_rules = rules.home_rules(place.pool_id, place.team_id)
    away = archive is not None and archive.away_at is not None
    limit_s = home_rules.limit_s(archived=away)
    if archive is None and limit_s is None:
        return None
    current = stay is not None and stay.archive == place.away
    idle_state = homes.idle_state_of(stay) if stay is not None and current else homes.HomeIdleState(away)
    verdict = homes.verdict_of(place, idle_state, rules)
    left_s = verdict.left_s
    seconds = {"used": idle_state.unused_s, "left": left_s or 0.0, "limit": limit_s or 0}
    amounts = {name: format_days(duration_s) for name, duration_s in seconds.items()}
    deletable = away and homes.may_be_deleted(place, stay, rules)
    may = may_move(actor, place.owner_id)
    quiet = archive is None or not archive.open
    if away:
        text = _("Archived for %(used)s.") % amounts
        if deletable:
            text = _("Archived for %(used)s. Administrators can delete it permanently now.") % amounts
        elif limit_s is not None:
            text = _(
                "Archived for %(used)s of %(limit)s. After that, administrators can delete it permanently."
            )
            text = text % amounts
        after = _("No data is lost. Start a workspace there, or choose “Restore”.")
        if deletable:
            after = _("You can restore it until it is deleted.")
    else:
        text = _("Unused for %(used)s of %(limit)s. Archived in %(left)s.") % amounts if limit_s else ""
        after = _("It is restored when needed again. Choose “Keep home folder” to reset the time.")
        if idle_state.unused_s < homes.DAY_S:
            text = _("Archived after %(limit)s without use.") % amounts if limit_s else ""
    progress, percent = _progress(archive)
    return HomeLine(
        place=place,
        archive=archive,
        text=text,
        after=after,
        warned=idle_state.warned_s is not None,
        goes_on=str(archive.get_state_display()) if archive is not None and archive.active else "",
        progress=progress,
        percent=percent,
        problem=_failure_text(archive) if away else "",
        used_s=idle_state.unused_s,
        limit_s=limit_s,
        due_at=timezone.now() + timedelta(seconds=left_s) if left_s is not None else None,
        deletable=deletable,
        may_keep=may and (idle_state.unused_s >= homes.DAY_S or idle_state.warned_s is not None or not quiet)
        and not (away and not quiet) and (limit_s is not None or not quiet),
        may_restore=may and away and quiet,
    )  # fmt: skip


def _progress(archive: HomeArchive | None) -> tuple[str, int | None]:
    if archive is None or not archive.active or not archive.bytes_done:
        return "", None
    total = archive.stream_bytes if archive.state == HomeArchiveState.RESTORING else 0
    done = filesizeformat(archive.bytes_done)
    if not total or archive.bytes_done > total:
        return done, None
    text = _("%(done)s of %(total)s") % {"done": done, "total": filesizeformat(total)}
    return text, archive.bytes_done * 100 // total


def _failure_text(archive: HomeArchive | None) -> str:
    if archive is not None and archive.reason and not archive.active:
        with contextlib.suppress(LookupError):
            return sentence_of(Reason.from_json(archive.reason))
    return ""


def delete_question(place: HomePlace, archive: HomeArchive) -> dict[str, Any]:
    """Return the context of the page that confirms the deletion of an archived home."""
    size = filesizeformat(archive.size_bytes)
    named = {"home": homes.name_of(place), "user": place.owner.username, "size": size}
    return {
        "title": _("Permanently delete the archived home folder %(home)s?") % named,
        "loses": [
            _("all files of %(user)s in this team and pool: %(size)s in the archive") % named,
            _("the option to restore it"),
        ],
        "stays": [
            _("the account, and home folders in other teams and pools"),
            _("other archives of the user"),
            _("an entry in the audit log with your reason, and a notice to the user"),
        ],
        "yes": _("Delete %(home)s") % named,
        "note": _("For the audit log and the user."),
        "typed": homes.name_of(place),
    }
