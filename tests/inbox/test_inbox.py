"""The inbox: recipients, order, and equal counts everywhere."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events import live
from portal.fleet.inventory import cordons
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.domain_events import CapacityChanged
from portal.fleet.inventory.models import CordonCause, Device, Node, Pool, PoolState
from portal.people.accounts import deactivation
from portal.people.accounts.models import ApiToken, Delegation, Role
from portal.people.join_requests import policies as join_policies
from portal.people.join_requests import services as joins
from portal.quota.requests import policies as quota_policies
from portal.quota.requests.models import QuotaRequest
from portal.quota.requests.services import requests as quota
from portal.quota.reservations import policies as reservation_policies
from portal.quota.reservations import services as reservations
from portal.quota.reservations.models import Reservation
from portal.web.inbox import pushing, selectors
from portal.web.inbox.items import ItemKind
from portal.web.inbox.sources import SOURCES
from tests.factories import MembershipFactory, UserFactory, make_token
from tests.reservations.test_reservations import H100, ask

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def kinds(user) -> list[str]:
    return [key.source for key in selectors.keys(user)]


def quota_request(user, team, **fields) -> QuotaRequest:
    columns = {"kind": "quota", "resource": "gpu:h100", "amount": 1000, "note": "More"}
    return QuotaRequest.objects.create(team=team, requester=user, **{**columns, **fields})


@pytest.fixture
def one_request_each(team, alice, bob, fay, pool):
    """One request of each kind; alice owns vision."""
    quota_request(bob, team)
    quota_request(bob, team, kind="member_cap", resource="workspaces")
    ask(alice, team)
    joins.request_to_join(actor=fay, slug="vision", text="Hello")


# --- items by user --------------------------------------------------------------------------------


def test_inbox_is_limited_to_own_decisions(one_request_each, alice, bob, charlie, fay, petra, olga):
    assert sorted(kinds(petra)) == ["quota", "reservation"]
    assert sorted(kinds(alice)) == ["join", "quota"]
    assert sorted(kinds(olga)) == ["quota", "reservation"]
    for nobody in (bob, charlie, fay):
        assert kinds(nobody) == [] and selectors.count(nobody) == 0


def test_badge_equals_the_list_for_each_user(one_request_each, pool, alice, bob, fay, petra, olga, ada):
    Device.objects.filter(pk=Device.objects.first().pk).update(healthy=False)
    Node.objects.create(pool=pool, name="away", online=False)
    Pool.objects.create(name="Mute", slug="mute", driver="simulated", state=PoolState.UNREACHABLE)
    assert {"device", "node", "pool"} <= set(kinds(olga))
    for user in (alice, bob, fay, petra, olga, ada):
        keys = selectors.keys(user)
        assert selectors.count(user) == len(keys) == len(selectors.items(user, keys))


def test_delegate_sees_items_of_the_approver_until_the_delegation_ends(
    one_request_each, petra, bob, charlie, clock
):
    now = timezone.now()
    Delegation.objects.create(
        approver=petra, delegate=charlie, starts_at=now, ends_at=now + dt.timedelta(hours=1)
    )
    assert sorted(kinds(charlie)) == ["quota", "reservation"]
    assert selectors.count(charlie) == 2
    clock.shift(3601)
    assert kinds(charlie) == []
    assert selectors.count(charlie) == 0


def test_own_request_is_not_in_the_inbox(team, petra, pool):
    MembershipFactory(team=team, user=petra, role=Role.OWNER)
    quota_request(petra, team)
    ask(petra, team)
    assert kinds(petra) == []


def test_deactivated_user_has_no_items(one_request_each, petra):
    deactivation.deactivate(actor=SYSTEM, user=petra)
    petra.refresh_from_db()
    assert selectors.count(petra) == 0


def test_decided_items_leave_all_inboxes(one_request_each, petra, alice):
    other = UserFactory(username="paul", is_approver=True)
    before = selectors.keys(petra)
    quota.deny(actor=other, request_id=QuotaRequest.objects.get(kind="quota").pk, note="No")
    reservations.deny(actor=other, reservation_id=Reservation.objects.get().pk, note="No")
    for user in (petra, other):
        assert kinds(user) == []
    assert selectors.items(petra, before) == [], "an item that somebody has decided meanwhile is not shown"


def test_urgent_items_come_first_then_the_oldest(team, bob, petra, alice, pool, clock):
    first = quota_request(bob, team)
    clock.shift(60)
    second = quota_request(bob, team, resource="disk_mib")
    clock.shift(60)
    soon = ask(alice, team, start_h=2)
    later = ask(alice, team, start_h=100)
    expected = [str(row.pk) for row in (soon, first, second, later)]
    assert [key.pk for key in selectors.keys(petra)] == expected
    [urgent, *others] = selectors.items(petra, selectors.keys(petra))
    assert urgent.urgent and not any(item.urgent for item in others)


# --- capacity -------------------------------------------------------------------------------------------


def test_capacity_problems_are_listed_for_operators_until_decided(pool, olga, petra, alice):
    bad, lost = Device.objects.filter(node=Node.objects.first()).order_by("index")[:2]
    cordons.cordon_device(actor=SYSTEM, device_id=bad.pk, reason="fails", cause=CordonCause.CHECK)
    Device.objects.filter(pk=lost.pk).update(present=False)
    node = Node.objects.exclude(pk=bad.node_id).first()
    Node.objects.filter(pk=node.pk).update(online=False)
    assert sorted(kinds(olga)) == ["device", "device", "node"]
    assert kinds(petra) == kinds(alice) == []
    items = {item.who: item for item in selectors.items(olga, selectors.keys(olga))}
    assert items[cordons.display_name(bad)].detail == "fails"
    assert all(item.simulated for item in items.values())
    # The operator decides: it stays cordoned, or returns.
    cordons.cordon_device(actor=olga, device_id=bad.pk, reason="to be replaced")
    inventory.set_cordon(actor=olga, node_id=node.pk, cordoned=True)
    assert kinds(olga) == ["device"]
    cordons.cordon_device(actor=olga, device_id=lost.pk, reason="sold")
    assert kinds(olga) == []


def test_unreachable_pool_is_one_item(pool, olga):
    Node.objects.update(online=False)
    Pool.objects.update(state=PoolState.UNREACHABLE, state_message="timed out")
    [item] = selectors.items(olga, selectors.keys(olga))
    assert (item.key.source, item.detail) == ("pool", "timed out")
    Pool.objects.update(enabled=False)
    assert kinds(olga) == []


def test_operators_are_notified_only_when_problems_change(
    pool, olga, monkeypatch, django_capture_on_commit_callbacks
):
    told, kept = [], {}

    class Redis:
        def set(self, key, value, get):
            before, kept[key] = kept.get(key), value.encode()
            return before

    monkeypatch.setattr(live, "connection", Redis)
    monkeypatch.setattr(live, "publish_to_all", lambda ids, kind: told.append(set(ids)))
    for expected in (1, 1):
        with django_capture_on_commit_callbacks(execute=True):
            pushing.capacity_changed(CapacityChanged())
        assert len(told) == expected
    Node.objects.filter(pk=Node.objects.first().pk).update(online=False)
    with django_capture_on_commit_callbacks(execute=True):
        pushing.capacity_changed(CapacityChanged())
    assert told[1:] == [{olga.pk}]


# --- tokens ---------------------------------------------------------------------------------------------


def test_expiring_token_in_use_is_listed_for_its_user(bob, alice):
    token, _ = make_token(bob)
    soon, now = timezone.now() + dt.timedelta(days=3), timezone.now()
    ApiToken.objects.filter(pk=token.pk).update(expires_at=soon)
    assert kinds(bob) == [], "nobody uses it"
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    assert kinds(bob) == ["token"] and kinds(alice) == []
    ApiToken.objects.filter(pk=token.pk).update(revoked_at=now)
    assert kinds(bob) == []


# --- notices --------------------------------------------------------------------------------------


@pytest.fixture
def refreshed_users(monkeypatch):
    """The users whose open pages were told to refresh."""
    found: set = set()
    monkeypatch.setattr(live, "publish_to_all", lambda ids, kind: found.update(ids))
    monkeypatch.setattr(live, "publish_to", lambda user_id, kind: found.add(user_id))
    return found


@pytest.fixture
def committed(refreshed_users, django_capture_on_commit_callbacks):
    def run(act, *args, **kwargs):
        refreshed_users.clear()
        with django_capture_on_commit_callbacks(execute=True):
            act(*args, **kwargs)
        return refreshed_users

    return run


def test_all_deciders_are_notified_at_each_step(team, alice, bob, fay, petra, olga, pool, committed):
    amy = MembershipFactory(team=team, role=Role.OWNER).user
    paul = UserFactory(username="paul", is_approver=True)
    assert {alice.pk, amy.pk} <= committed(joins.request_to_join, actor=fay, slug="vision")
    made = fay.join_requests.get()
    assert {alice.pk, amy.pk, fay.pk} <= committed(joins.approve, actor=amy, request_id=made.pk)

    assert {petra.pk, paul.pk, olga.pk} <= committed(ask, alice, team)
    row = Reservation.objects.get()
    assert {petra.pk, paul.pk, olga.pk} <= committed(reservations.approve, actor=paul, reservation_id=row.pk)

    asked = quota_request(bob, team)
    assert {petra.pk, paul.pk} <= committed(quota.approve, actor=paul, request_id=asked.pk)
    cap = quota_request(bob, team, kind="member_cap", resource="workspaces")
    assert {alice.pk, amy.pk, olga.pk} <= committed(quota.cancel, actor=bob, request_id=cap.pk)


def test_inbox_and_notices_have_the_same_recipients(
    one_request_each, alice, bob, charlie, fay, petra, olga, ada
):
    """Selectors query by actor, notices by request; both must agree."""
    people = (alice, bob, charlie, fay, petra, olga, ada)
    tells = {
        "quota": quota_policies.deciders_of,
        "reservation": reservation_policies.deciders_of,
        "join": join_policies.deciders_of,
    }
    for source in SOURCES:
        if source.name not in tells:
            continue
        model = source.rows(ada).model
        for row in model.objects.all():
            waits = {user.username for user in people if source.rows(user).filter(pk=row.pk).exists()}
            told = {user.username for user in tells[source.name](row)}
            assert waits == told & {user.username for user in people}, (source.name, row)


# --- pages and REST -------------------------------------------------------------------------------------


def body(response) -> str:
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def test_page_shows_requester_subject_age_and_reason(one_request_each, alice, petra, as_user):
    page = body(as_user(alice).get("/inbox/"))
    for words in (
        "fay",
        "requests to join Vision",
        "Hello",
        "Decided by owners of Vision",
        "Approve as member",
    ):
        assert words in page
    page = body(as_user(petra).get("/inbox/?kind=quota"))
    assert "View details" in page and "You decide requests" in page
    assert reservations.url(Reservation.objects.get()) not in page
    assert "Approve as member" not in page


def test_empty_inbox_explains_its_purpose(bob, team, as_user):
    page = body(as_user(bob).get("/inbox/"))
    assert "Your inbox is empty" in page and "your tokens that expire soon" in page
    assert "No items of this kind" in body(as_user(bob).get("/inbox/?kind=join"))
    assert body(as_user(bob).get("/inbox/?kind=nonsense&page=x"))


def test_approval_from_the_inbox_returns_to_it(one_request_each, alice, fay, team, as_user):
    made = fay.join_requests.get()
    given = {"do": "approve", "role": "member", "next": "/inbox/"}
    answer = as_user(alice).post(f"/join/requests/{made.pk}/decide/", given)
    assert answer.url == "/inbox/"
    assert team.memberships.filter(user=fay).exists()


def test_keeping_a_gpu_cordoned_from_the_inbox_returns_to_it(pool, olga, as_user):
    bad = Device.objects.order_by("uuid")[0]
    cordons.cordon_device(actor=SYSTEM, device_id=bad.pk, reason="fails", cause=CordonCause.CHECK)
    page = body(as_user(olga).get("/inbox/"))
    assert "Keep out of service" in page and "Check again" in page
    given = {"do": "cordon", "note": "fails", "next": "/inbox/"}
    assert as_user(olga).post(f"/gpus/devices/{bad.pk}/", given).url == "/inbox/"
    given["next"] = "https://elsewhere.example/"
    assert as_user(olga).post(f"/gpus/devices/{bad.pk}/", given).url == f"/gpus/devices/{bad.pk}/"
    assert kinds(olga) == []


def test_markup_is_escaped(team, fay, alice, as_user):
    joins.request_to_join(actor=fay, slug="vision", text="<script>alert(1)</script>")
    page = body(as_user(alice).get("/inbox/"))
    assert "<script>alert" not in page and "&lt;script&gt;" in page


def test_badge_shows_the_count_on_every_page(one_request_each, alice, as_user):
    for path in ("/", "/teams/", "/inbox/"):
        assert '<span class="badge plain wait">2<' in body(as_user(alice).get(path)).replace("\n", "")
    badges = body(as_user(alice).get("/inbox/badge/"))
    assert badges.count(">2<") == 2 and 'hx-swap-oob="innerHTML:#to-decide-bar"' in badges, "not on a phone"
    bar = body(as_user(alice).get("/")).partition('class="bar-phone"')[2]
    assert ">2<" in bar.partition("</nav>")[0]


def test_page_of_500_items_has_few_queries(team, alice, petra, pool, as_user):
    people = [UserFactory(username=f"p{number}") for number in range(10)]
    start = timezone.now() + dt.timedelta(days=3)
    Reservation.objects.bulk_create(
        Reservation(
            team=team,
            title=f"R{number}",
            amounts={H100: 1000},
            starts_at=start,
            ends_at=start + dt.timedelta(hours=1),
            created_by=people[number % 10],
        )
        for number in range(250)
    )
    QuotaRequest.objects.bulk_create(
        QuotaRequest(
            team=team, requester=people[number % 10], resource=f"gpu:m{number}", amount=1000, note="More"
        )
        for number in range(250)
    )
    browser = as_user(petra)
    page = body(browser.get("/inbox/"))
    assert "1–50" in page and ">500<" in page.replace("\n", "")
    with CaptureQueriesContext(connection) as queries:
        body(browser.get("/inbox/?page=7"))
    assert len(queries) <= 30, [query["sql"] for query in queries]


def test_count_takes_few_queries(team, bob, as_user):
    with CaptureQueriesContext(connection) as queries:
        selectors.count(bob)
    assert len(queries) <= 4, [query["sql"] for query in queries]


def test_inbox_over_rest(one_request_each, alice, with_token):
    program = with_token(alice)
    found = program.get("/api/v1/inbox").json()
    assert found["count"] == 2
    rows = {row["kind"]: row for row in found["results"]}
    assert set(rows) == {"join", "quota"}
    assert rows["join"]["who"] == "fay" and rows["join"]["url"].startswith("/join/requests/")
    assert rows["join"]["id"].startswith("join-")
    [only] = program.get("/api/v1/inbox?kind=join").json()["results"]
    assert only == rows["join"]
    refused = program.get("/api/v1/inbox?kind=nonsense")
    assert refused.status_code == 400 and "kind" in refused.json()["errors"]


@pytest.mark.parametrize("cursor", ["", "x", "MXx4fHg=", "%00", "MXwyMDI2LTAxLTAxfHF8cQ=="])
def test_invalid_cursor_is_refused(alice, with_token, cursor):
    assert with_token(alice).get(f"/api/v1/inbox?cursor={cursor}").status_code == 400


def test_every_kind_has_a_source():
    assert {source.kind for source in SOURCES} == set(ItemKind)
    assert len({source.name for source in SOURCES}) == len(SOURCES)
