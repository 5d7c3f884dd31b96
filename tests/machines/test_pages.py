"""Machines of a pool, on pages and over REST."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.fleet.inventory.models import Node
from portal.fleet.machines import selectors
from portal.fleet.machines.conditions import Condition, conditions_of, notes_of
from portal.fleet.machines.models import JoinToken, Machine, MachineState
from provisioning.version import VERSION
from tests import sites
from tests.api.conftest import api as api
from tests.factories import MachineFactory, UserFactory
from tests.newcomers import Newcomer

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.one_machine
LIST = "/pools/this-machine/machines/"


def found_conditions(**changes):
    Machine.objects.update(**changes)
    return conditions_of(selectors.machines_with_nodes().get(), timezone.now())


def test_conditions_of_a_machine(local_pool, clock):
    now = timezone.now()
    MachineFactory(pool=local_pool, name="gpu-07")
    node = Node.objects.create(pool=local_pool, name="gpu-07")
    assert found_conditions() == [Condition.WAITING]
    Node.objects.filter(pk=node.pk).update(online=True, seen_at=now)
    assert found_conditions(heard_at=now) == [Condition.ONLINE]
    assert found_conditions(clock_off_s=-95.0) == [Condition.CLOCK_OFF]
    assert notes_of(selectors.machines_with_nodes().get(), now) == [
        "The clock is 95 s behind. Synchronise it."
    ]
    assert found_conditions(clock_off_s=0.0, version="9.9.9") == [Condition.VERSION_DIFFERS]
    assert (
        f"Berth 9.9.9, but the portal has {VERSION}"
        in notes_of(selectors.machines_with_nodes().get(), now)[0]
    )
    assert found_conditions(version=VERSION, cloned_at=now) == [Condition.CLONED]
    assert found_conditions(cloned_at=now - timedelta(days=2)) == [Condition.ONLINE]
    Node.objects.filter(pk=node.pk).update(cordoned=True)
    assert found_conditions() == [Condition.CORDONED]
    Node.objects.filter(pk=node.pk).update(cordoned=False)
    clock.shift(61)
    assert found_conditions() == [Condition.OFFLINE]
    clock.shift(-61)
    Node.objects.filter(pk=node.pk).update(online=False)
    assert found_conditions() == [Condition.OFFLINE]
    assert found_conditions(certificate_expires_at=now + timedelta(days=3)) == [Condition.OFFLINE]
    assert "expires in 3 days" in notes_of(selectors.machines_with_nodes().get(), now)[1]
    assert found_conditions(state=MachineState.LEFT) == [Condition.LEFT]
    assert found_conditions(state=MachineState.REVOKED) == [Condition.REVOKED]


def test_join_command_is_shown_once(doors, local_pool, olga, as_user):
    browser = as_user(olga)
    assert "Add machine" in browser.get("/pools/this-machine/").content.decode()
    page = browser.post(f"{LIST}add/").content.decode()
    assert "berth node join https://berth.example.org:8007 --token berth-join." in page
    assert "shown only once" in page
    again = browser.get(LIST).content.decode()
    assert "berth-join." not in again
    assert "Unused tokens" in again
    token = JoinToken.objects.get()
    browser.post(f"{LIST}tokens/{token.pk}/revoke/")
    assert not JoinToken.objects.exists()
    command = page.split("--token ")[1].split('"')[0]
    assert Newcomer().join(command).json()["code"] == "join_token_unknown"


def test_page_explains_how_to_open_the_doors(local_pool, olga, as_user):
    page = as_user(olga).get(LIST).content.decode()
    assert "Set BERTH_NODES_ADDRESS" in page
    assert f'action="{LIST}add/"' not in page


def test_joined_machine_is_listed_there_and_in_its_pool(joined, olga, as_user):
    una = UserFactory(username="una", is_auditor=True)
    for user in (olga, una):
        page = as_user(user).get(LIST).content.decode()
        assert "gpu-07" in page and "Waiting for its first report" in page
        assert ("Revoke" in page) == (user == olga)
    assert "Waiting for its first report" in as_user(olga).get("/pools/this-machine/").content.decode()
    node = Node.objects.get(name="gpu-07")
    assert "has not reported yet" in as_user(olga).get(f"/gpus/nodes/{node.pk}/").content.decode()


def test_machine_is_revoked_on_the_page(joined, olga, as_user):
    machine = Machine.objects.get()
    browser = as_user(olga)
    assert "Revoke gpu-07?" in browser.get(f"/machines/{machine.pk}/revoke/").content.decode()
    page = browser.post(f"/machines/{machine.pk}/revoke/", {"note": "stolen"}, follow=True)
    assert "gpu-07 revoked." in page.content.decode()
    machine.refresh_from_db()
    assert machine.state == MachineState.REVOKED
    page = browser.post(f"/machines/{machine.pk}/delete/", follow=True).content.decode()
    assert "Redis is not responding" in page
    assert "gpu-07" not in browser.get("/pools/this-machine/").content.decode()


def test_list_of_many_machines_is_paged_with_few_queries(
    local_pool, olga, as_user, django_assert_max_num_queries
):
    for number in range(60):
        MachineFactory(pool=local_pool, name=f"m-{number:03}")
    browser = as_user(olga)
    browser.get(LIST)
    with django_assert_max_num_queries(14):
        page = browser.get(LIST).content.decode()
    assert "m-049" in page and "m-050" not in page
    assert "m-050" in browser.get(f"{LIST}?page=2").content.decode()


def test_machines_over_rest(doors, local_pool, olga, api):
    program = api(olga)
    made = program.post("pools/this-machine/join-tokens", {})
    assert made.status_code == 201, made.content
    body = made.json()
    assert body["command"].endswith(body["token"])
    listed = program.get("pools/this-machine/join-tokens").json()["results"]
    assert [row["id"] for row in listed] == [body["id"]]
    assert body["token"] not in str(listed)
    newcomer = Newcomer()
    assert newcomer.join(body["token"]).status_code == 201
    assert program.get("pools/this-machine/join-tokens").json()["results"] == []
    spare = f"pools/this-machine/join-tokens/{program.post('pools/this-machine/join-tokens').json()['id']}"
    assert [program.post(f"{spare}/revoke").status_code for _ in range(2)] == [204, 404]
    (row,) = program.get("machines").json()["results"]
    assert (row["name"], row["condition"], row["gateway"]) == ("gpu-07", "waiting", "10.1.2.3:8646")
    revoked = program.post(f"machines/{row['id']}/revoke", {"note": "stolen"})
    assert (revoked.status_code, revoked.json()["condition"]) == (200, "revoked")
