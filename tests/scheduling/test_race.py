"""Fifty concurrent requests for the last GPU, on either database."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from portal.catalog import selectors
from portal.fleet.inventory.models import AllocatedDevice
from portal.scheduling import cycle
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import MembershipFactory, UserFactory, create_workspace
from tests.suite.choice import THOROUGH

pytestmark = pytest.mark.django_db(transaction=True)
PEOPLE = 50 if os.environ.get(THOROUGH) else 20
THREADS = 10


@pytest.mark.slow("many requests on 10 threads, with real commits")
def test_one_of_many_concurrent_requests_gets_the_last_gpu(alice, team, make, pool):
    make(alice, "sim-h100-x4")
    make(alice, "sim-h100-x2")
    make(alice, "sim-h100-x1")
    people = [UserFactory() for _ in range(PEOPLE)]
    for person in people:
        MembershipFactory(team=team, user=person)
    template = selectors.all_templates().get(slug="jupyterlab")
    flavor = selectors.all_flavors().get(slug="sim-h100-x1")
    together = threading.Barrier(THREADS)

    def ask(person):
        if person in people[:THREADS]:
            together.wait(30)
        try:
            return create_workspace(actor=person, team=team, template=template, flavor=flavor).state
        finally:
            connection.close()

    with ThreadPoolExecutor(THREADS) as pool_of_threads:
        found = list(pool_of_threads.map(ask, people))
    assert found.count(State.PROVISIONING) <= 1
    # A request that met a running cycle is decided by the next one.
    cycle.run()
    rows = Workspace.objects.filter(owner__in=people)
    assert rows.filter(state=State.PROVISIONING).count() == 1
    assert rows.filter(state=State.PENDING).count() == PEOPLE - 1
    held = AllocatedDevice.objects.filter(active=True)
    assert held.count() == held.values("device").distinct().count() == 8
    positions = rows.filter(state=State.PENDING).values_list("queue_entry__position", flat=True)
    assert sorted(positions) == list(range(1, PEOPLE))
