"""Environments that cannot be built show state, reason and retry."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog.environments import services, upkeep
from portal.catalog.environments.models import BuildState, EnvironmentBuild, EnvironmentVersion, VersionState
from portal.common.events.models import Event
from portal.fleet.inventory.models import Node
from tests.environments.helpers import commands, environment, only, progress, version_of

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
NO_NODE = "No online node can build “Vision tools”."


def lose_build(made) -> EnvironmentVersion:
    """The version, after the node was silent in every attempt."""
    for _ in range(3):
        EnvironmentBuild.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
        upkeep.sweep()
    return version_of(made)


def test_reason_of_a_lost_build_is_kept_while_no_node_can_retry(local_pool, sent, olga, as_user):
    made = environment()
    assert lose_build(made).state == VersionState.FAILED
    Node.objects.update(online=False)
    EnvironmentVersion.objects.update(retry_at=timezone.now())
    upkeep.sweep()
    version = version_of(made)
    assert (version.state, version.failure["code"]) == (VersionState.FAILED, "build_node_did_not_answer")
    page = as_user(olga).get(f"/environments/{made.slug}/").content.decode()
    assert "did not respond during the build." in page
    assert "Try again" in page
    assert "Building" not in page
    assert "Building" not in as_user(olga).get("/environments/").content.decode()
    Node.objects.update(online=True)
    upkeep.sweep()
    assert version_of(made).state == VersionState.BUILDING


def test_rebuild_without_a_node_shows_the_reason(local_pool, sent, olga, as_user):
    made = environment()
    lose_build(made)
    Node.objects.update(online=False)
    answer = as_user(olga).post(f"/environments/{made.slug}/build/", follow=True).content.decode()
    assert NO_NODE in answer
    assert version_of(made).failure["code"] == "no_building_node"
    recorded = Event.objects.count()
    services.rebuild(actor=olga, environment=made)
    assert Event.objects.count() == recorded


def test_build_is_queued_until_a_node_starts_it(local_pool, sent, olga, as_user):
    made = environment()
    page = as_user(olga).get(f"/environments/{made.slug}/").content.decode()
    assert "Building" not in page
    assert str(BuildState.QUEUED.label) in page
    progress(only(sent))
    assert "Building" in as_user(olga).get(f"/environments/{made.slug}/").content.decode()
    assert "Building" in as_user(olga).get("/environments/").content.decode()


def test_version_sources_are_shown_as_entered(local_pool, sent, olga, as_user):
    made = environment(source="numpy==1.26.4\npandas[excel]>=2.2; python_version > '3.10'\n")
    commands(sent)
    page = as_user(olga).get(f"/environments/{made.slug}/").content.decode()
    assert "numpy==1.26.4" in page
    assert "pandas[excel]&gt;=2.2; python_version &gt; &#x27;3.10&#x27;" in page
