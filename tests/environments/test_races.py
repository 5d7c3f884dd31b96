"""Concurrent builds, requests and results."""

from __future__ import annotations

import pytest

from portal.catalog.environments import builds, services, upkeep
from portal.catalog.environments.models import BuildState, EnvironmentBuild, EnvironmentVersion, VersionState
from portal.common.actors import SYSTEM
from tests.environments.helpers import LOCK, built, commands, environment, only, version_of
from tests.environments.test_builds import second_node
from tests.races import at_once

pytestmark = pytest.mark.django_db(transaction=True)
SOURCE = {"source_kind": "packages", "source": "numpy\npandas"}


def no_errors(outcomes):
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    return outcomes


def test_requests_for_the_same_content_at_once_build_once(local_pool, sent):
    made = environment()
    built(only(sent))

    def ask():
        return services.change_source(actor=SYSTEM, environment=made, **SOURCE).number

    assert no_errors(at_once([ask, ask, ask])) == [2, 2, 2]
    assert EnvironmentBuild.objects.filter(version__number=2).count() == 1
    assert len(commands(sent)) == 1


def test_equal_sources_on_two_nodes_at_once_are_resolved_once(local_pool, sent):
    second_node(local_pool)
    sent.away = True
    one, two = environment(name="One"), environment(name="Two")
    EnvironmentBuild.objects.update(lease="", lease_expires_at=None, attempts=0)
    nodes = list(EnvironmentBuild.objects.values_list("node_id", flat=True))
    assert len(set(nodes)) == 2
    sent.away = False
    sent_now = no_errors(
        at_once([lambda: builds.send_waiting(nodes[0]), lambda: builds.send_waiting(nodes[1])])
    )
    assert sorted(sent_now) == [False, True]
    built(only(sent))
    upkeep.sweep()
    for command in commands(sent):
        assert command.lock == LOCK
        built(command)
    assert version_of(one).digest == version_of(two).digest


def test_sweeps_at_once_create_one_build_per_node(local_pool, sent):
    environment()
    built(only(sent))
    second_node(local_pool)
    no_errors(at_once([upkeep.sweep] * 4))
    assert EnvironmentBuild.objects.filter(state=BuildState.QUEUED).count() == 1
    assert len(commands(sent)) == 1


def test_result_and_cancellation_at_once_are_consistent(local_pool, sent):
    environment()
    command = only(sent)
    build = EnvironmentBuild.objects.get()
    counted, cancelled = at_once(
        [lambda: built(command), lambda: builds.cancel(actor=SYSTEM, build_id=build.pk)]
    )
    version = EnvironmentVersion.objects.get()
    build.refresh_from_db()
    if counted is True:
        assert isinstance(cancelled, Exception)
        assert (version.state, build.state) == (VersionState.READY, BuildState.READY)
    else:
        assert (version.state, build.state) == (VersionState.FAILED, BuildState.CANCELLED)


def test_result_and_deletion_at_once_leave_no_rows(local_pool, sent):
    made = environment()
    command = only(sent)
    outcomes = at_once(
        [lambda: built(command), lambda: services.delete(actor=SYSTEM, environment=made), upkeep.sweep]
    )
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    assert not EnvironmentBuild.objects.exists()
    assert not EnvironmentVersion.objects.exists()


def test_same_result_twice_at_once_counts_once(local_pool, sent):
    environment()
    command = only(sent)
    assert sorted(no_errors(at_once([lambda: built(command)] * 3))) == [False, False, True]
