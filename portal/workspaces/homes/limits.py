"""Enforces the size limit of home folders (`BERTH_HOME_LIMIT_MIB`) from the nodes' measurements.

If the kernel limits the home (project quotas), writes fail above 110 % of the limit and nothing is stopped.
Without project quotas, the portal stops workspaces instead: those that use a home above its limit stop after
`BERTH_HOME_GRACE_S`, after `GROWING_GRACE` if the home keeps growing above 110 % of the limit, or at once if
it grows and its disk is nearly full (ADR 0118). Files are kept. A workspace can be started again, and its
owner then has the same time to delete files. The number of files is limited in the same way, by the home's
share of the disk (ADR 0070).
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
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import Team, User
from portal.workspaces import services
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import HomesMeasured
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeUsage, Workspace
from portal.workspaces.stops import StopRule
from provisioning.registry import drivers_with
from provisioning.traits import HomeStorage
from provisioning.types import HOME_HOLD, HomeHold
from provisioning.types import HomeUsage as Measured

log = logging.getLogger(__name__)
STEPS = (100, 90, 80)
RESET_BELOW = 5
"""Percentage points that usage has to fall below a threshold before the owner is notified about it again."""
SEVERE_PERCENT = 110
"""Percent of the home limit at which the kernel's limit is set."""
KERNEL_MISSED = SEVERE_PERCENT + 1
"""A home that grows above this percentage is not limited by the kernel, even if its node reports so."""
GROWING_GRACE = timedelta(minutes=1)
HOME_RULE = StopRule("home_limit_mib", "settings")
NOTED_MIB = 1
NOTED_FILES = 1000


def apply(
    *, pool_slug: str, node_name: str, measured: Sequence[Measured], now: datetime | None = None
) -> None:
    """Apply a node's measurements. Ignores unknown nodes and homes without an account."""
    now = now or timezone.now()
    drivers = drivers_with(lambda traits: traits.homes is HomeStorage.NODE)
    nodes = Node.objects.filter(name=node_name, pool__driver__in=drivers).select_related("pool")
    node = (nodes.filter(pool__slug=pool_slug) if pool_slug else nodes).first()
    if node is None or "\x00" in "".join(usage.home for usage in measured):
        log.warning("ignored homes reported by an unknown node")
        return
    pairs = {usage.home: usage.home.partition("/")[::2] for usage in measured}
    teams = {
        team.slug: team for team in Team.objects.filter(slug__in={team for team, _owner in pairs.values()})
    }
    users = {
        user.username: user
        for user in User.objects.filter(username__in={owner for _team, owner in pairs.values()})
    }
    rows_by_key = {(row.owner_id, row.team_id): row for row in HomeUsage.objects.filter(node=node)}
    for usage in measured:
        slug, username = pairs[usage.home]
        if slug in teams and username in users:
            team, user = teams[slug], users[username]
            _apply_one(rows_by_key.get((user.pk, team.pk)), usage, user=user, team=team, node=node, now=now)
    emit(HomesMeasured(node, tuple(measured)))


def _apply_one(
    row: HomeUsage | None, seen: Measured, *, user: User, team: Team, node: Node, now: datetime
) -> None:
    new = row is None
    row = row or HomeUsage(owner=user, team=team, node=node)
    notified, before = row.percent, None if new else (row.used_mib, row.files)
    level = level_of(seen, notified)
    over_since = (row.over_since or now) if level == STEPS[0] else None
    if new or _differs_enough(row, seen) or level != notified or over_since != row.over_since:
        row.used_mib, row.files, row.most_files = seen.used_mib, seen.files, seen.most_files
        row.hidden, row.percent, row.over_since = seen.hidden, level, over_since
        row.measured_at = now
        with transaction.atomic():
            row.save()
            if level > notified:
                _notify(row)
    if over_since is not None:
        _stop_growth(row, now, _grace(seen, before, held=_kernel_limits_homes(node)))


def _differs_enough(row: HomeUsage, seen: Measured) -> bool:
    """Return whether the measurement differs enough to be stored."""
    return (
        abs(seen.used_mib - row.used_mib) >= NOTED_MIB
        or abs(seen.files - row.files) >= NOTED_FILES
        or (seen.hidden, seen.most_files) != (row.hidden, row.most_files)
    )


def _kernel_limits_homes(node: Node) -> bool:
    """Return whether the kernel limits homes of the node."""
    return bool(node.facts.get(HOME_HOLD) == HomeHold.PROJECT_QUOTA)


def _grace(seen: Measured, before: tuple[int, int] | None, *, held: bool) -> timedelta | None:
    """Return how long workspaces may use a home above its limit, or `None` for no end.

    `before`: bytes in MiB and files of the last measurement. `held`: the kernel limits the home.
    """
    if held:
        return GROWING_GRACE if _grew_above(KERNEL_MISSED, seen, before) else None
    if seen.disk_low and _grew_above(STEPS[0], seen, before):
        return timedelta(0)
    grace = timedelta(seconds=settings.BERTH_HOME_GRACE_S)
    return min(GROWING_GRACE, grace) if _grew_above(SEVERE_PERCENT, seen, before) else grace


def _grew_above(percent: int, seen: Measured, before: tuple[int, int] | None) -> bool:
    """Return whether bytes or files have grown to at least `percent` of the limit."""
    used_mib, files = before or (seen.used_mib, seen.files)
    by_bytes, by_files = _percents(seen)
    return (seen.used_mib > used_mib and by_bytes >= percent) or (seen.files > files and by_files >= percent)


def _percents(usage: Measured | HomeUsage) -> tuple[float, float]:
    """Return the used percentages of the byte limit and of the file limit."""
    limit = settings.BERTH_HOME_LIMIT_MIB
    return (
        usage.used_mib * 100 / limit if limit else 0.0,
        usage.files * 100 / usage.most_files if limit and usage.most_files else 0.0,
    )


def level_of(seen: Measured, notified: int = 0) -> int:
    """Return the highest threshold reached: 0, 80, 90 or 100.

    `notified` is the last level that the owner was notified about. It is kept until usage is clearly lower.
    """
    if not settings.BERTH_HOME_LIMIT_MIB:
        return 0
    if seen.hidden:
        return STEPS[0]
    percent = max(_percents(seen))
    reached = next((step for step in STEPS if percent >= step), 0)
    nearly = next((step for step in STEPS if percent + RESET_BELOW >= step), 0)
    # Level 100 ends without hysteresis, so that work can continue as soon as space is free.
    return reached if notified == STEPS[0] else max(reached, min(notified, nearly))


def _stop_growth(row: HomeUsage, now: datetime, grace: timedelta | None) -> None:
    """Stop the workspaces that use a home above its limit, once their grace period is over."""
    if grace is None:
        return
    using = Workspace.objects.filter(
        owner=row.owner, team=row.team, state=State.RUNNING,
        allocations__node=row.node, allocations__released_at=None,
    )  # fmt: skip
    for workspace in using:
        since = max(filter(None, (row.over_since, workspace.ready_at)), default=now)
        if now - since < grace:
            continue
        growth_note = " and keeps growing" if grace < timedelta(seconds=settings.BERTH_HOME_GRACE_S) else ""
        reason = f"its home folder is full{growth_note}: {amounts(row)}"
        with contextlib.suppress(StateConflict), transaction.atomic():
            services.stop(
                actor=SYSTEM,
                workspace_id=workspace.pk,
                reason=reason,
                cause=Reason(WorkspaceCode.STOPPED_HOME_FULL, {"amounts": amounts(row)}),
                rule=HOME_RULE,
            )


def amounts(row: HomeUsage) -> str:
    """Return the usage and limit as text, in bytes or, if the number of files is the problem, in files."""
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
    """Return whether to report files instead of bytes, because the file limit is closer."""
    by_bytes, by_files = _percents(row)
    return by_files > by_bytes and by_files >= STEPS[-1] - RESET_BELOW


def room_mib(owner_id: UUID, team_id: UUID, node: str) -> int | None:
    """Return by how many MiB a home may grow, according to its last measurement; `None` for no limit."""
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
    """A note about the home on a workspace's page. `percent` is at most 100."""

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
    rows = HomeUsage.objects.filter(owner_id=workspace.owner_id, team_id=workspace.team_id).select_related(
        "node"
    )
    row = max(rows, key=lambda row: (row.hidden, max(_percents(row))), default=None)
    if row is None:
        return None
    full = row.percent == STEPS[0]
    percent = min(100, int(_percents(row)[_files_fill(row)]))
    return HomeNote(amounts(row), _sentence(row, _left(row, workspace)) if row.percent else "", full, percent)


def _left(row: HomeUsage, workspace: Workspace) -> timedelta:
    """Return the time until the workspace stops because of its home, if the home does not change."""
    grace, now = timedelta(seconds=settings.BERTH_HOME_GRACE_S), timezone.now()
    since = max(filter(None, (row.over_since, workspace.ready_at)), default=now)
    return max(since + grace - now, timedelta(0))


def _sentence(row: HomeUsage, left: timedelta) -> str:
    if row.hidden:
        problem = _("Folders in this home folder are nested too deeply to measure. Delete them.")
        return f"{problem} {_what_follows(row, left)}"
    if row.percent < STEPS[0]:
        return _("The home folder uses %(amounts)s. Delete files that you no longer need.") % {
            "amounts": amounts(row)
        }
    problem = _("The home folder uses %(amounts)s. Delete files.") % {"amounts": amounts(row)}
    return f"{problem} {_what_follows(row, left)}"


def _what_follows(row: HomeUsage, left: timedelta) -> str:
    """Return a sentence about what happens to a home above its limit and to its workspaces."""
    if _kernel_limits_homes(row.node):
        if _files_fill(row):
            return _("Above %(limit)s files, no file can be created. Workspaces continue.") % {
                "limit": format_number(row.most_files * SEVERE_PERCENT // 100)
            }
        return _("Above %(limit)s, writes fail. Workspaces continue.") % {
            "limit": format_memory(settings.BERTH_HOME_LIMIT_MIB * SEVERE_PERCENT // 100)
        }
    sentences = [
        _("Workspaces that use it stop in %(grace)s. Files are kept.")
        % {"grace": format_duration(left.total_seconds())}
    ]
    if left > GROWING_GRACE:
        sentences.append(
            _("If it keeps growing, they stop after %(growing)s, or at once if the disk is nearly full.")
            % {"growing": format_duration(GROWING_GRACE.total_seconds())}
        )
    return " ".join(sentences)


def _notify(row: HomeUsage) -> None:
    """Notify the owner about the reached threshold."""
    full = row.percent == STEPS[0]
    grace = timedelta(seconds=settings.BERTH_HOME_GRACE_S)
    params = {"team": row.team.name, "percent": row.percent}
    title = (
        _("Your home folder in %(team)s is full") % params
        if full
        else _("Your home folder in %(team)s is %(percent)s %% full") % params
    )
    notify(
        [row.owner],
        kind="workspace.home_filling",
        title=title,
        body=_sentence(row, grace),
        url="/workspaces/",
    )
