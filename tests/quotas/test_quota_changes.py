"""Bulk quota changes: preview, all or none, no concurrent change overwritten."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, PreconditionFailed
from portal.common.events.models import Event
from portal.people.accounts.models import Team
from portal.quota.limits.models import Quota
from portal.quota.limits.selectors.effects import effects_of
from portal.quota.limits.services import cohorts, limits, quota_changes
from portal.quota.limits.services.quota_changes import MAX_CHANGES, QuotaChange
from portal.workspaces.lifecycle import State
from tests.factories import TeamFactory, WorkspaceFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
H100 = "gpu:h100"
V1 = "/api/v1/quotas"


@pytest.fixture
def lender() -> Team:
    return TeamFactory(slug="nlp", name="Language")


@pytest.fixture
def lent(team: Team, lender: Team, bob: Any) -> Team:
    """vision uses 3 H100 with a quota of 2: it borrows 1 of the lender's 4. 2 more wait."""
    pool = local_pool_with(node_info(gpus=4))
    cohort = cohorts.create_cohort(actor=SYSTEM, slug="lab", name="Laboratory")
    for each, quota in ((team, 2000), (lender, 4000)):
        cohorts.set_share(actor=SYSTEM, team=each, cohort=cohort)
        limits.set_quota(actor=SYSTEM, team=each, resource=H100, quota=quota)
    WorkspaceFactory(owner=bob, team=team, state=State.RUNNING, pool=pool, amounts={H100: 3000})
    for _number in range(2):
        WorkspaceFactory(owner=bob, team=team, state=State.PENDING, amounts={H100: 2000})
    return team


def quotas() -> dict[tuple[str, str], int]:
    rows = Quota.objects.filter(team__isnull=False)
    return {(row.team.slug, row.resource): row.quota for row in rows if row.team}


def test_preview_names_teams_above_quota_and_requests_that_then_fit(lent: Team, lender: Team) -> None:
    fewer = effects_of({("nlp", H100): 0})
    assert [(each.team, each.state, each.gets_worse) for each in fewer.changes] == [
        ("nlp", "within_quota", False)
    ]
    (borrower,) = fewer.others
    assert (borrower.team, borrower.state, borrower.after.excess) == ("vision", "over_limit", 1000)
    assert fewer.released == 0
    more = effects_of({("vision", H100): 6000, ("nlp", "memory_mib"): 1024})
    assert more.others == [] and more.released == 1
    sums = {each.resource: (each.before.quota, each.after.quota, each.after.capacity) for each in more.sums}
    assert sums[H100] == (6000, 10_000, 4000)
    assert quotas() == {("vision", H100): 2000, ("nlp", H100): 4000}, "a preview writes nothing"


def test_preview_equals_the_effect_of_the_change(lent: Team, lender: Team, olga: Any) -> None:
    """Also with a grant, whose effect depends on whether the cohort limits the resource."""
    from django.utils import timezone

    from portal.quota.limits.models import Grant
    from portal.quota.limits.selectors.limits import team_usage

    for resource in (H100, "cpu_milli"):
        Grant.objects.create(team=lent, resource=resource, amount=1000, starts_at=timezone.now())
    changes = [
        QuotaChange(lent, H100, None),
        QuotaChange(lender, "cpu_milli", 8000),
        QuotaChange(lender, H100, 1000),
    ]
    effects = quota_changes.change_quotas(actor=olga, changes=changes).effects
    for effect in (*effects.changes, *effects.others):
        team = Team.objects.get(slug=effect.team)
        (after,) = [bar for bar in team_usage(team) if bar.resource == effect.resource]
        assert after == effect.after


def test_bulk_change_writes_all_with_an_entry_each(lent: Team, lender: Team, olga: Any) -> None:
    limits.set_quota(actor=SYSTEM, team=lent, resource=H100, quota=2000, borrowing_limit=500)
    changes = [
        QuotaChange(lent, "gpu:H100", 3000, seen=2000, checked=True),
        QuotaChange(lender, H100, None, seen=4000, checked=True),
        QuotaChange(lender, "memory_mib", 1024, seen=None, checked=True),
    ]
    before = Event.objects.count()
    assert quota_changes.change_quotas(actor=olga, changes=changes).changed == 3
    assert quotas() == {("vision", H100): 3000, ("nlp", "memory_mib"): 1024}
    assert Quota.objects.get(team=lent).borrowing_limit == 500, "other limits stay"
    assert Event.objects.count() == before + 3
    assert quota_changes.change_quotas(actor=olga, changes=[QuotaChange(lent, H100, 3000)]).changed == 0


def test_concurrent_change_of_another_user_is_not_overwritten(lent: Team, lender: Team, olga: Any) -> None:
    changes = [
        QuotaChange(lender, H100, 5000, seen=4000, checked=True),
        QuotaChange(lent, H100, 3000, seen=1000, checked=True),
    ]
    with pytest.raises(PreconditionFailed) as refused:
        quota_changes.change_quotas(actor=olga, changes=changes)
    assert "Vision: H100" in refused.value.message and "Language" not in refused.value.message
    assert quotas() == {("vision", H100): 2000, ("nlp", H100): 4000}


def test_invalid_changes_are_refused_as_a_whole(team: Team, alice: Any, olga: Any) -> None:
    good = QuotaChange(team, H100, 1000)
    for wrong, field in (
        ([], None),
        ([good, QuotaChange(team, "gpu:H100", 2000)], "changes.1.resource"),
        ([good, QuotaChange(team, "elephants", 1)], "changes.1.resource"),
        ([good, QuotaChange(team, "memory_mib", -1)], "changes.1.quota"),
        ([QuotaChange(team, f"gpu:m{number}", 1) for number in range(MAX_CHANGES + 1)], None),
    ):
        with pytest.raises(InvalidInput) as refused:
            quota_changes.change_quotas(actor=olga, changes=wrong)
        assert field is None or field in refused.value.field_errors
    with pytest.raises(NotAllowed):
        quota_changes.change_quotas(actor=alice, changes=[good])
    with pytest.raises(NotAllowed):
        quota_changes.preview(actor=alice, changes=[good])
    assert not Quota.objects.exists()


def test_rest_previews_changes_and_names_conflicts(
    lent: Team, lender: Team, with_token: Any, olga: Any
) -> None:
    client = with_token(olga)
    changes = [
        {"team": "vision", "resource": H100, "quota": 8000, "seen": 2000},
        {"team": "nlp", "resource": H100, "quota": 0},
    ]

    def post(act: str, lines: list[dict[str, Any]]) -> Any:
        return client.post(f"{V1}/{act}", {"changes": lines}, content_type="application/json")

    effects = post("preview", changes).json()
    assert effects["released"] == 1
    assert effects["changes"][1]["limit_before"] == 6000
    assert quotas()[("vision", H100)] == 2000
    answer = post("change", changes)
    assert answer.status_code == 200 and answer.json() == {"changed": 2, "effects": effects}
    assert quotas() == {("vision", H100): 8000, ("nlp", H100): 0}
    late = post("change", changes)
    assert late.status_code == 412 and late.json()["code"] == "changed_meanwhile"
    assert late.json()["overtaken"] == [{"team": "vision", "resource": H100, "seen": 2000, "quota": 8000}]
    unknown = post("change", [{"team": "gone", "resource": H100, "quota": 1}])
    assert unknown.status_code == 400 and "changes.0.team" in unknown.json()["errors"]
