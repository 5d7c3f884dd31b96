"""Insert stopped workspaces of other users into an instance's database: `python -m bench.api.rows NUMBER`."""

from __future__ import annotations

import os
import sys

BATCH = 500


def main(count: int) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()

    from django.utils import timezone

    from portal.catalog.models import Flavor, Template
    from portal.people.accounts.models import Team, User
    from portal.workspaces.lifecycle import DesiredState, State
    from portal.workspaces.models import QueueEntry, Workspace, WorkspaceStatus

    team, now = Team.objects.get(slug="default"), timezone.now()
    template, flavor = Template.objects.get(slug="jupyterlab"), Flavor.objects.get(slug="cpu-small")
    owners = [User.objects.get_or_create(username=f"bench-{number}")[0] for number in range(100)]
    workspaces = [
        Workspace(
            name=f"w{number}",
            owner=owners[number % len(owners)],
            team=team,
            template=template,
            flavor=flavor,
            resources=flavor.as_request(),
            state=State.STOPPED,
            desired_state=DesiredState.STOPPED,
            state_since=now,
            requested_at=now,
        )
        for number in range(count)
    ]
    Workspace.objects.bulk_create(workspaces, batch_size=BATCH)
    QueueEntry.objects.bulk_create((QueueEntry(workspace=row) for row in workspaces), batch_size=BATCH)
    WorkspaceStatus.objects.bulk_create(
        (WorkspaceStatus(workspace=row) for row in workspaces), batch_size=BATCH
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
