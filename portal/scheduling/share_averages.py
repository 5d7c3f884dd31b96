"""Updates the decaying average of what each team borrows, for its share in the queue's order."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.quota.limits.models import TeamShare
from portal.quota.limits.shares import decay_average
from portal.scheduling import snapshot


@transaction.atomic
def update(*, now: datetime | None = None) -> int:
    """Update every team's average by what it borrows now. Returns how many rows changed.

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
        borrowed = {name: amount for name in node.usage if (amount := node.borrowed(name))}
        elapsed_s = int((now - share.averaged_at).total_seconds()) if share.averaged_at else 0
        mean = decay_average(
            share.borrowed_avg, borrowed, max(0, elapsed_s), settings.BERTH_SHARE_HALF_LIFE_S
        )
        if mean != share.borrowed_avg or mean or borrowed:
            share.borrowed_avg, share.averaged_at = mean, now
            changed.append(share)
        elif share.averaged_at is not None:
            # Nothing borrowed and no history: the clock starts with the next loan.
            share.averaged_at = None
            changed.append(share)
    TeamShare.objects.bulk_update(changed, ["borrowed_avg", "averaged_at"])
    return len(changed)
