"""The queue shows workspaces that wait at engines, and hides names in the same way as for its own."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.clusters import begun_at, cluster_pool, waiting_at
from tests.factories import MembershipFactory, TeamFactory, UserFactory
from tests.ui.test_pages import text_of

pytestmark = pytest.mark.django_db
PATH = "/api/v1/queue/handed-over"


@pytest.fixture
def cluster(catalog):
    return cluster_pool()


@pytest.fixture
def stranger():
    return MembershipFactory(team=TeamFactory(slug="audio"), user=UserFactory(), role="owner").user


def test_waiting_workspaces_are_listed_by_position(cluster, team, bob, as_user):
    starts_at = timezone.now() + timedelta(minutes=20)
    waiting_at(cluster, team=team, owner=bob, name="later", position=7)
    waiting_at(cluster, team=team, owner=bob, name="first", position=2, starts_at=starts_at)
    begun_at(cluster, team=team, owner=bob, name="runs")
    text = text_of(as_user(bob).get("/queue/"))
    assert "Handed over to clusters 2" in text
    assert text.index("first") < text.index("later")
    assert "Priority: Earlier jobs wait too." in text
    assert "runs" not in text
    assert "The queue is empty" not in text
    rows = {row["name"]: row for row in as_user(bob).get(PATH).json()["results"]}
    assert rows.keys() == {"first", "later"}
    first = rows["first"]
    assert (first["pool"], first["position"], first["own"]) == ("cluster", 2, True)
    assert first["starts_at"][:19] == starts_at.isoformat()[:19]
    assert first["since"] == first["requested_at"]


def test_names_and_reasons_of_others_are_hidden(cluster, team, bob, stranger, olga, as_user):
    waiting_at(cluster, team=team, owner=bob, name="secret-plan", message="Job 7 of secret-user is first.")
    browser = as_user(stranger)
    page, answer = browser.get("/queue/"), browser.get(PATH)
    assert "secret" not in page.content.decode()
    assert "Vision" in text_of(page)
    assert "secret" not in answer.content.decode()
    (row,) = answer.json()["results"]
    assert (row["workspace"], row["name"], row["owner"], row["message"]) == (None, None, None, "")
    assert (row["team"], row["position"], row["code"]) == ("vision", 3, "priority")
    for reader in (bob, olga):
        assert "secret-plan" in as_user(reader).get("/queue/").content.decode()
        (row,) = as_user(reader).get(PATH).json()["results"]
        assert (row["name"], row["message"]) == ("secret-plan", "Job 7 of secret-user is first.")


def test_page_filters_by_team(cluster, team, bob, olga, as_user):
    waiting_at(cluster, team=team, owner=bob)
    browser = as_user(olga)
    assert "Handed over to clusters" in text_of(browser.get("/queue/?team=vision"))
    assert "Handed over to clusters" not in text_of(browser.get("/queue/?team=other"))
