"""The contract of home deletion, for every driver."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import pytest

from provisioning.errors import InvalidSpec, ProvisioningError
from tests.suite.choice import THOROUGH

# Number of points inside a deletion at which the process is killed.
KILL_POINTS = 6 if os.environ.get(THOROUGH) else 3


def delete_home(harness, spec, *, calls: int = 200) -> None:
    """Call until the home is deleted."""
    for _ in range(calls):
        if harness.driver.delete_home(team=spec.team, owner=spec.owner):
            return
    raise AssertionError("the home was not deleted in time")


def test_only_the_given_home_is_deleted(harness):
    spec, other = harness.spec(), harness.spec(owner="bob")
    for each in (spec, other):
        harness.run(each)
        harness.delete(each.ref)
    delete_home(harness, spec)
    assert (harness.home_exists(spec), harness.home_exists(other)) == (False, True)
    delete_home(harness, spec)
    assert harness.home_exists(other)


def test_home_in_another_team_is_kept(harness):
    spec, other = harness.spec(), harness.spec(team="vision")
    for each in (spec, other):
        harness.run(each)
        harness.delete(each.ref)
    delete_home(harness, spec)
    assert (harness.home_exists(spec), harness.home_exists(other)) == (False, True)


def test_deletion_of_a_missing_home_succeeds(harness):
    delete_home(harness, replace(harness.spec(), owner="nobody"))
    delete_home(harness, replace(harness.spec(), team="nowhere"))


def test_late_start_does_not_recreate_a_deleted_home(harness):
    spec = harness.spec()
    harness.run(spec)
    harness.delete(spec.ref)
    delete_home(harness, spec)
    with pytest.raises(ProvisioningError):
        harness.start(spec)
    assert not harness.home_exists(spec)


def test_deletion_killed_at_any_point_is_completed_by_the_next(harness):
    other = harness.spec(owner="bob")
    harness.run(other)
    harness.delete(other.ref)

    def stocked():
        spec = harness.spec()
        harness.run(spec)
        harness.delete(spec.ref)
        return spec

    caller = harness.caller("delete-home", stocked())
    caller.go()
    answer = caller.answer()
    assert answer and answer["state"] == "gone"
    died = 0
    for point in range(1, int(answer["steps"]), max(1, int(answer["steps"]) // KILL_POINTS)):
        spec = stocked()
        caller = harness.caller("delete-home", spec, kill_at=point)
        caller.go()
        died += caller.answer() is None
        delete_home(harness, spec)
        assert not harness.home_exists(spec), f"killed at step {point}"
        assert harness.home_exists(other)
    assert died >= KILL_POINTS // 2


def test_invalid_home_names_are_refused(harness):
    spec = harness.spec()
    harness.run(spec)
    harness.delete(spec.ref)
    for name in ("..", ".", "", "a/b", "/etc", ".deleting-ada", "a\0b", "a\nb"):
        for team, owner in ((spec.team, name), (name, spec.owner)):
            with contextlib.suppress(InvalidSpec):
                harness.driver.delete_home(team=team, owner=owner)
        assert harness.home_exists(spec), name
