"""The owner is notified when an engine preempts a running workspace and queues it again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.events.models import Notification
from portal.workspaces import engine_queue, notices
from portal.workspaces.domain_events import WorkspaceReady
from portal.workspaces.lifecycle import State
from provisioning.types import EngineQueue, Observation, ObservedState, WorkspaceRef
from tests.clusters import begun_at, cluster_pool

pytestmark = pytest.mark.django_db


def test_owner_is_notified_when_the_engine_queues_a_workspace_again(alice, team):
    workspace = begun_at(cluster_pool(), owner=alice, team=team, name="train", state=State.RUNNING)
    queue = EngineQueue(position=1, seen_at=timezone.now().timestamp())
    ref = WorkspaceRef(str(workspace.pk), workspace.generation)
    engine_queue.requeue(workspace, Observation(ref=ref, state=ObservedState.QUEUED, queue=queue))
    notice = Notification.objects.get(user=alice)
    assert (notice.kind, notice.url) == ("workspace.requeued", f"/workspaces/{workspace.pk}/")
    assert notice.title == "Simulated: train was preempted"
    assert notice.body.startswith("Training cluster stopped the workspace for another job")
    workspace.refresh_from_db()
    assert engine_queue.queued_at(workspace) > workspace.placed_at


def test_wait_at_the_engine_counts_in_the_notice_that_a_workspace_is_ready(alice, team):
    now = timezone.now()
    workspace = begun_at(
        cluster_pool(), owner=alice, team=team, state=State.RUNNING, ready_at=now, began_at=now
    )
    workspace.requested_at = now - timedelta(minutes=30)
    notices.notify_ready(WorkspaceReady(workspace))
    assert "waited 30 min" in Notification.objects.get(user=alice).body
