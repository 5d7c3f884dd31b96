"""Preview equals creation with all features enabled.

Several pools, one with separate homes and spread first starts; requests for any model and for several
flavors; member shares; quotas, cohorts and preemption. `BERTH_TEST_WORLDS` selects the worlds, such as
`1000:500` for 500 of them.
"""

from __future__ import annotations

import random

import pytest
from django.db import transaction

from portal.people.accounts.models import Team
from portal.quota.limits.models import Cohort
from portal.scheduling import cycle, share_averages, snapshot_cache, snapshot_feed
from portal.workspaces import results, services
from portal.workspaces.lifecycle import STOPPABLE, State
from portal.workspaces.models import Workspace
from portal.workspaces.reconcile import release
from tests.factories import FlavorFactory, MembershipFactory, TeamFactory, UserFactory, local_pool_with
from tests.scheduling.test_cycle_properties import check, create, limits
from tests.scheduling.test_model_choice import A100, L4, T4, machine
from tests.suite import choice

pytestmark = pytest.mark.django_db
FLAVORS = ("any", "any-8-gib", "two", "third", "a100", "t4", "here")
STEPS = 20


@pytest.fixture
def teams(catalog) -> list[Team]:
    """Two pools and two teams with two users each, with member shares."""
    apart = local_pool_with(machine("a", A100, A100), machine("b", T4, T4), machine("c", T4), slug="apart")
    shared = local_pool_with(machine("d", T4, L4), slug="shared")
    shared.config = {**shared.config, "homes_shared": True}
    for pool in (apart, shared):
        pool.hand_out_max_age_hours, pool.scrub = 0, False
        pool.save()
    FlavorFactory(slug="any", accelerator_count=1, price_cents=None)
    FlavorFactory(slug="any-8-gib", accelerator_count=1, accelerator_memory_mib=20_000)
    FlavorFactory(slug="two", accelerator_count=2)
    FlavorFactory(slug="third", accelerator_count=1, accelerator_model=T4, accelerator_milli=300)
    FlavorFactory(slug="a100", accelerator_count=1, accelerator_model=A100, price_cents=400)
    FlavorFactory(slug="t4", accelerator_count=1, accelerator_model=T4, price_cents=40)
    FlavorFactory(slug="here", accelerator_count=1, pool=apart)
    teams = [TeamFactory(slug=slug, member_shares=True) for slug in ("red", "blue")]
    for team in teams:
        for _ in range(2):
            MembershipFactory(team=team, user=UserFactory())
    return teams


def step(chance: random.Random, teams: list[Team]) -> None:
    """Create a workspace, decide, or let one become ready, end or be deleted."""
    what = chance.choice(("create", "create", "create", "cycle", "averages", "ready", "end", "end", "delete"))
    rows = list(Workspace.objects.live().select_related("owner").order_by("created_at", "pk"))
    if what == "create":
        create(chance, teams, FLAVORS, lists=True)
    elif what == "averages":
        share_averages.update_teams()
        share_averages.update_members()
        snapshot_cache.forget()
    elif what == "cycle" or not rows:
        cycle.run()
    else:
        row = chance.choice(rows)
        if what == "ready" and row.state == State.PROVISIONING:
            results.mark_ready(row, endpoint="")
        elif what == "end" and row.state in (State.PROVISIONING, State.RUNNING):
            Workspace.objects.filter(pk=row.pk).update(state=State.STOPPED)
            release(row, used=False)
            snapshot_feed.workloads([row.pk])
        elif what == "delete" and row.state in STOPPABLE:
            services.delete(actor=row.owner, workspace_id=row.pk)


@pytest.mark.thorough("whole histories")
def test_previews_hold_with_all_features_enabled(teams, monkeypatch, clock, settings):
    settings.BERTH_MIN_RUN_S = 600
    # The test holds the transaction.
    monkeypatch.setattr(snapshot_cache, "_in_transaction", lambda: False)
    for seed in choice.worlds(8):
        snapshot_cache.forget()
        chance = random.Random(seed)
        try:
            with transaction.atomic():
                for resource in ("gpu:a100", "gpu:t4"):
                    limits(chance, teams, resource)
                Cohort.objects.update(borrow_first=chance.random() < 0.5, preempt_first=chance.random() < 0.5)
                for _ in range(STEPS):
                    clock.shift(chance.choice((1, 30, 900, 7200)))
                    step(chance, teams)
                    check()
                transaction.set_rollback(True)
        except Exception as error:
            error.add_note(f"world {seed}")
            raise
    snapshot_cache.forget()
