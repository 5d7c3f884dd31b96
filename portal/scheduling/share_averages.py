"""Updates the decaying averages that order the queue: the amounts that teams borrow and members use."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.fleet.inventory.models import Allocation
from portal.quota.limits.models import MemberShare, ResourceRate, TeamShare
from portal.quota.limits.shares import decay_average, weighted_use
from portal.quota.limits.tree import Node
from portal.quota.limits.types import Amounts
from portal.scheduling import snapshot
from portal.workspaces.models import Workspace


@transaction.atomic
def update_teams(*, now: datetime | None = None) -> int:
    """Update each team's average with its currently borrowed amounts. Returns the number of changed rows.

    The current amount counts for the whole time since the last update.
    """
    now = now or timezone.now()
    shares = list(
        TeamShare.objects.select_for_update(of=("self",), skip_locked=True)
        .filter(cohort__isnull=False)
        .select_related("team")
    )
    if not shares:
        return 0
    tree = snapshot.load(now).scheduler.usage.tree
    changed = []
    for share in shares:
        node = tree.teams[share.team.slug]
        elapsed_s = int((now - share.averaged_at).total_seconds()) if share.averaged_at else 0
        mean = borrowed_average(node, share.borrowed_avg, max(0, elapsed_s))
        if mean != share.borrowed_avg or mean or borrowed_now(node):
            share.borrowed_avg, share.averaged_at = mean, now
            changed.append(share)
        elif share.averaged_at is not None:
            # Nothing is borrowed and there is no history, so the average starts when the team next borrows.
            share.averaged_at = None
            changed.append(share)
    TeamShare.objects.bulk_update(changed, ["borrowed_avg", "averaged_at"])
    return len(changed)


def borrowed_now(node: Node) -> dict[str, int]:
    """Return the amounts that a team borrows now, by resource."""
    return {name: amount for name in node.usage if (amount := node.borrowed(name))}


def borrowed_average(node: Node, before: Amounts, elapsed_s: int) -> dict[str, int]:
    """Return the decayed average of borrowed amounts, `elapsed_s` seconds after it was `before`."""
    return decay_average(before, borrowed_now(node), elapsed_s, settings.BERTH_SHARE_HALF_LIFE_S)


@transaction.atomic
def update_members(*, now: datetime | None = None) -> int:
    """Update the average of each member with their current use, in teams whose members take turns.

    The current use counts for the whole time since the last update. Returns how many rows changed.
    """
    now = now or timezone.now()
    using = _use_of_members()
    rows = {
        (row.team_id, row.user_id): row
        for row in MemberShare.objects.select_for_update(of=("self",), skip_locked=True)
    }
    MemberShare.objects.bulk_create(
        [
            MemberShare(team_id=team, user_id=user, averaged_at=now)
            for team, user in sorted(using.keys() - rows.keys())
        ],
        ignore_conflicts=True,
    )
    changed, unused = [], []
    for key, row in rows.items():
        elapsed_s = max(0, int((now - row.averaged_at).total_seconds()))
        use = using.get(key, 0)
        averages = decay_average({"": row.use_avg}, {"": use}, elapsed_s, settings.BERTH_SHARE_HALF_LIFE_S)
        row.use_avg, row.averaged_at = averages.get("", 0), now
        if row.use_avg or use:
            changed.append(row)
        else:
            unused.append(row.pk)
    MemberShare.objects.bulk_update(changed, ["use_avg", "averaged_at"], batch_size=500)
    MemberShare.objects.filter(pk__in=unused).delete()
    return len(changed) + len(unused)


def _use_of_members() -> dict[tuple[UUID, UUID], int]:
    """Return the members' current use in milli-GPU, by team and user."""
    rates = dict(ResourceRate.objects.values_list("resource", "rate_milli"))
    holding = Allocation.objects.filter(released_at=None).values("workspace")
    use: dict[tuple[UUID, UUID], int] = {}
    for team, user, amounts in Workspace.objects.filter(pk__in=holding, team__member_shares=True).values_list(
        "team_id", "owner_id", "amounts"
    ):
        use[team, user] = use.get((team, user), 0) + weighted_use(amounts, rates)
    return use
