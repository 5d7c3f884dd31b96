"""Pages say that a workspace waits at an engine that places by itself, and where it runs afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.workspaces.models import Workspace
from tests.clusters import MODEL, begun_at, cluster_pool, handed_over, waiting_at
from tests.factories import FlavorFactory
from tests.ui.test_pages import text_of

pytestmark = pytest.mark.django_db
Browse = Callable[..., Client]


@pytest.fixture
def cluster(catalog: None) -> Pool:
    return cluster_pool(used_by_others={MODEL: 5})


def test_page_shows_position_estimate_and_reason(
    cluster: Pool, alice: User, team: Team, as_user: Browse
) -> None:
    starts_at = timezone.now() + timedelta(minutes=20)
    row = waiting_at(cluster, owner=alice, team=team, starts_at=starts_at)
    page = as_user(alice).get(f"/workspaces/{row.pk}/")
    text = text_of(page)
    assert re.search(r"Waiting\s+Simulated\s+Waits at Training cluster", text, re.I)
    assert "(estimate of the cluster) · Priority: Earlier jobs wait too. · seen" in text
    assert "Position 3 · starts" in text
    assert "GPU-hours count from the start there." in text
    assert "At the cluster : in progress" in text
    assert 'id="act-cancel"' in page.content.decode()
    assert "cluster-1" not in text


def test_page_omits_what_the_engine_does_not_report(
    cluster: Pool, alice: User, team: Team, as_user: Browse
) -> None:
    row = waiting_at(cluster, owner=alice, team=team, position=0, code="", message="")
    text = text_of(as_user(alice).get(f"/workspaces/{row.pk}/"))
    assert "Waits at Training cluster" in text
    assert "Position" not in text
    assert "estimate of the cluster" not in text


def test_page_shows_where_the_engine_has_placed_it(
    cluster: Pool, alice: User, team: Team, as_user: Browse
) -> None:
    row = begun_at(cluster, owner=alice, team=team)
    text = text_of(as_user(alice).get(f"/workspaces/{row.pk}/"))
    assert "cluster-2 Devices 1 × h100 h100/1" in text
    assert "Waits at" not in text
    unknown = begun_at(cluster, owner=alice, team=team, node="new-9")
    assert "new-9 Devices 1 × h100" in text_of(as_user(alice).get(f"/workspaces/{unknown.pk}/"))


def test_page_shows_the_hand_over_before_the_first_report(
    cluster: Pool, alice: User, team: Team, as_user: Browse
) -> None:
    row = handed_over(cluster, owner=alice, team=team)
    assert "Handed over to Training cluster" in text_of(as_user(alice).get(f"/workspaces/{row.pk}/"))


def test_list_and_home_say_where_it_waits(cluster: Pool, alice: User, team: Team, as_user: Browse) -> None:
    waiting_at(cluster, owner=alice, team=team, name="waits")
    begun_at(cluster, owner=alice, team=team, name="runs")
    page = as_user(alice).get("/workspaces/")
    assert 'title="Waits at Training cluster · position 3 · Priority: Earlier jobs wait too."' in (
        page.content.decode()
    )
    text = text_of(page)
    assert "Waits at Training cluster" in text
    assert "Training cluster · cluster-2" in text
    home = text_of(as_user(alice).get("/"))
    assert "Waits at Training cluster" in home
    assert "· position 3" in home


def test_waiting_workspace_can_be_cancelled(cluster: Pool, alice: User, team: Team, as_user: Browse) -> None:
    row = waiting_at(cluster, owner=alice, team=team)
    as_user(alice).post(f"/workspaces/{row.pk}/stop/")
    row = Workspace.objects.get(pk=row.pk)
    assert row.state == "stopping"
    assert "Waits at" not in text_of(as_user(alice).get(f"/workspaces/{row.pk}/"))


@pytest.mark.parametrize(
    ("used", "badge", "button", "message"),
    [
        (
            5,
            "Starts soon",
            "Start",
            f"Training cluster starts the workspace soon (3 of 8 × {MODEL} free there).",
        ),
        (
            8,
            "Waits at the cluster",
            "Start when capacity is free",
            f"Joins the queue of Training cluster (0 of 8 × {MODEL} free there).",
        ),
    ],
)
def test_form_says_what_happens_at_the_cluster(
    used: int, badge: str, button: str, message: str, catalog: None, alice: User, team: Team, as_user: Browse
) -> None:
    pool = cluster_pool(used_by_others={MODEL: used})
    FlavorFactory(slug="clu-gpu", name="Cluster GPU", pool=pool, accelerator_count=1, accelerator_model=MODEL)
    page = as_user(alice).get("/workspaces/new/?flavor=clu-gpu").content.decode()
    summary = page[page.index('id="summary"') :]
    assert badge in summary
    assert message in text_of_part(summary)
    assert f"<span data-label>{button}</span>" in summary
    assert "Starts now" not in summary


def text_of_part(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_pool_page_says_that_the_cluster_places_and_what_others_use(
    cluster: Pool, alice: User, team: Team, as_user: Browse
) -> None:
    text = text_of(as_user(alice).get("/pools/cluster/"))
    assert "The cluster places workspaces itself." in text
    assert f"{MODEL} 3 of 8 free" in text
    assert "5 used by others" in text
