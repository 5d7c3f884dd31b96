"""The limit of home folders, `BERTH_HOME_LIMIT_MIB`: nodes measure, owners are notified, growth is stopped.

A file system without quotas cannot stop writes, so the portal stops the writers. Workspaces that use a home
above its limit stop after `BERTH_HOME_GRACE_S`, or at once if the home keeps growing above 110 % of the
limit. Files are kept. A workspace can be started again and then has the same time to delete files (ADR 0028).
The number of files is limited in the same way, by the home's share of the disk (ADR 0070).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.errors import StateConflict
from portal.common.events.services import notify
from portal.common.formatting import format_duration, format_memory, format_number
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import Team, User
from portal.workspaces import services
from portal.workspaces.domain_events import HomesMeasured
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeUsage, Workspace
from provisioning.types import HomeUsage as Measured

log = logging.getLogger(__name__)
STEPS = (100, 90, 80)
CALMER = 5
"""Percentage points below a threshold at which it is reset, so that it can notify again."""
FAR_OVER = 110
NOTED_MIB = 1
NOTED_FILES = 1000


def apply(
    *, pool_slug: str, node_name: str, measured: Sequence[Measured], now: datetime | None = None
) -> None:
    """Apply a node's measurements. Unknown nodes and homes without an account are ignored."""
    now = now or timezone.now()
    nodes = Node.objects.filter(name=node_name, pool__simulated=False).select_related("pool")
    node = (nodes.filter(pool__slug=pool_slug) if pool_slug else nodes).first()
    if node is None or "\x00" in "".join(each.home for each in measured):
        log.warning("homes of a node that is not known are left out")
        return
    pairs = {each.home: each.home.partition("/")[::2] for each in measured}
    teams = {
        team.slug: team for team in Team.objects.filter(slug__in={team for team, _owner in pairs.values()})
    }
    users = {
        user.username: user
        for user in User.objects.filter(username__in={owner for _team, owner in pairs.values()})
    }
    known = {(row.owner_id, row.team_id): row for row in HomeUsage.objects.filter(node=node)}
    for each in measured:
        slug, username = pairs[each.home]
        if slug in teams and username in users:
            team, user = teams[slug], users[username]
            _apply_one(known.get((user.pk, team.pk)), each, user=user, team=team, node=node, now=now)
    emit(HomesMeasured(node, tuple(measured)))


def _apply_one(
    row: HomeUsage | None, seen: Measured, *, user: User, team: Team, node: Node, now: datetime
) -> None:
    new = row is None
    row = row or HomeUsage(owner=user, team=team, node=node)
    notified, far_over = row.percent, not new and _grew_far_over(row, seen)
    level = level_of(seen, notified)
    over_since = (row.over_since or now) if level == STEPS[0] else None
    if new or _moved(row, seen) or level != notified or over_since != row.over_since:
        row.used_mib, row.files, row.most_files = seen.used_mib, seen.files, seen.most_files
        row.hidden, row.percent, row.over_since = seen.hidden, level, over_since
        row.measured_at = now
        with transaction.atomic():
            row.save()
            if level > notified:
                _tell(row)
    if over_since is not None:
        _stop_growth(row, now, at_once=far_over)


def _moved(row: HomeUsage, seen: Measured) -> bool:
    """Return whether the measurement differs enough to be stored."""
    return (
        abs(seen.used_mib - row.used_mib) >= NOTED_MIB
        or abs(seen.files - row.files) >= NOTED_FILES
        or (seen.hidden, seen.most_files) != (row.hidden, row.most_files)
    )


def _grew_far_over(row: HomeUsage, seen: Measured) -> bool:
    """Return whether bytes or files have grown and exceed the limit by at least 10 %."""
    by_bytes, by_files = _percents(seen)
    return (seen.used_mib > row.used_mib and by_bytes >= FAR_OVER) or (
        seen.files > row.files and by_files >= FAR_OVER
    )


def _percents(usage: Measured | HomeUsage) -> tuple[float, float]:
    """Return the share of the limit taken by bytes and by files, in percent."""
    limit = settings.BERTH_HOME_LIMIT_MIB
    return (
        usage.used_mib * 100 / limit if limit else 0.0,
        usage.files * 100 / usage.most_files if limit and usage.most_files else 0.0,
    )


def level_of(seen: Measured, notified: int = 0) -> int:
    """Return the highest threshold reached: 0, 80, 90 or 100.

    `notified` is the last level notified. It remains until usage is clearly below it.
    """
    if not settings.BERTH_HOME_LIMIT_MIB:
        return 0
    if seen.hidden:
        return STEPS[0]
    percent = max(_percents(seen))
    reached = next((step for step in STEPS if percent >= step), 0)
    nearly = next((step for step in STEPS if percent + CALMER >= step), 0)
    # Full is left without hysteresis, so that work can continue as soon as space was freed.
    return reached if notified == STEPS[0] else max(reached, min(notified, nearly))


def _stop_growth(row: HomeUsage, now: datetime, *, at_once: bool) -> None:
    """Stop the workspaces that use a home above its limit, once their grace period is over."""
    grace = timedelta(seconds=settings.BERTH_HOME_GRACE_S)
    using = Workspace.objects.filter(
        owner=row.owner, team=row.team, state=State.RUNNING,
        allocations__node=row.node, allocations__released_at=None,
    )  # fmt: skip
    for workspace in using:
        since = max(filter(None, (row.over_since, workspace.ready_at)), default=now)
        if not at_once and now - since < grace:
            continue
        with contextlib.suppress(StateConflict), transaction.atomic():
            services.stop(
                actor=SYSTEM, workspace_id=workspace.pk, reason=f"its home folder is full: {amounts(row)}"
            )


def amounts(row: HomeUsage) -> str:
    """Return usage and limit as text, in bytes or, if files fill the home, in files."""
    if _files_fill(row):
        return _("%(used)s of %(limit)s files") % {
            "used": format_number(row.files),
            "limit": format_number(row.most_files),
        }
    return _("%(used)s of %(limit)s") % {
        "used": format_memory(row.used_mib),
        "limit": format_memory(settings.BERTH_HOME_LIMIT_MIB),
    }


def _files_fill(row: HomeUsage) -> bool:
    """Return whether to report files instead of bytes. Inodes are mentioned only if they matter."""
    by_bytes, by_files = _percents(row)
    return by_files > by_bytes and by_files >= STEPS[-1] - CALMER


def room_mib(owner_id: UUID, team_id: UUID, node: str) -> int | None:
    """Return how much a home on a node may grow in MiB, by its last measurement; `None` for no limit."""
    limit = settings.BERTH_HOME_LIMIT_MIB
    if not limit:
        return None
    row = (
        HomeUsage.objects.filter(owner=owner_id, team=team_id, node__name=node).order_by("-used_mib").first()
    )
    if row is None:
        return int(limit)
    return 0 if row.hidden or _percents(row)[1] >= STEPS[0] else max(0, int(limit) - row.used_mib)


@dataclass(frozen=True, slots=True)
class HomeNote:
    """The note about the home on a workspace's page. `percent` is at most 100."""

    amounts: str
    text: str = ""
    full: bool = False
    percent: int = 0


def note_of(workspace: Workspace) -> HomeNote | None:
    """Return a note about the fullest home of the owner in the team.

    Returns `None` without a limit or a measurement.
    """
    if not settings.BERTH_HOME_LIMIT_MIB or workspace.simulated:
        return None
    rows = HomeUsage.objects.filter(owner_id=workspace.owner_id, team_id=workspace.team_id)
    row = max(rows, key=lambda each: (each.hidden, max(_percents(each))), default=None)
    if row is None:
        return None
    full = row.percent == STEPS[0]
    percent = min(100, int(_percents(row)[_files_fill(row)]))
    return HomeNote(amounts(row), _sentence(row) if row.percent else "", full, percent)


def _sentence(row: HomeUsage) -> str:
    if row.hidden:
        return _(
            "Folders in this home folder are nested too deeply to measure. Delete them. "
            "Otherwise its workspaces stop after %(grace)s. Files are kept."
        ) % {"grace": format_duration(settings.BERTH_HOME_GRACE_S)}
    if row.percent < STEPS[0]:
        return _("The home folder uses %(amounts)s. Delete files that you no longer need.") % {
            "amounts": amounts(row)
        }
    return _(
        "The home folder uses %(amounts)s. Delete files. Otherwise its workspaces stop after "
        "%(grace)s, or sooner if it grows. Files are kept."
    ) % {"amounts": amounts(row), "grace": format_duration(settings.BERTH_HOME_GRACE_S)}


def _tell(row: HomeUsage) -> None:
    """Notify the owner about the reached threshold."""
    full = row.percent == STEPS[0]
    named = {"team": row.team.name, "percent": row.percent}
    title = (
        _("Your home folder in %(team)s is full") % named
        if full
        else _("Your home folder in %(team)s is %(percent)s %% full") % named
    )
    notify([row.owner], kind="workspace.home_filling", title=title, body=_sentence(row), url="/workspaces/")
