"""Each process of an instance is killed in turn while workspaces start and stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import redis

from tests.crash.harm import Fleet, children_of, kill
from tests.instance import eventually
from tests.suite.choice import quick_of

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]


def main(name: str) -> Callable[[Fleet], None]:
    def strike(fleet: Fleet) -> None:
        assert kill([fleet.berth.services()[name]["pid"]]) == 1

    return strike


def pool_of(name: str) -> Callable[[Fleet], None]:
    """The processes that run a worker's tasks; the worker survives and replaces them."""

    def strike(fleet: Fleet) -> None:
        assert kill(children_of(fleet.berth.services()[name]["pid"])) >= 1

    return strike


def supervisor(fleet: Fleet) -> None:
    """Kill everything but workspaces, as in a crash, and start again."""
    before = {row["pid"] for row in fleet.berth.services().values()}
    fleet.berth.kill_supervisor()
    fleet.berth.start()
    assert not before & {row["pid"] for row in fleet.berth.services().values()}


def stop_and_start_services(fleet: Fleet) -> None:
    """Stop and start in order, as for an upgrade; workspaces keep running."""
    fleet.berth.down_keeping_workspaces()
    assert fleet.agents_of(fleet.bystander) == fleet.untouched
    fleet.berth.start()


def forget_everything(fleet: Fleet) -> None:
    """Redis answers without any data: no messages, views or sessions."""
    url = fleet.berth.instance.redis_url("control", fleet.berth.secret("redis_control"))
    with redis.Redis.from_url(url) as client:
        client.flushall()


VICTIMS: dict[str, Callable[[Fleet], None]] = {
    "redis": main("redis"),
    "front-door": main("front-door"),
    "web": main("web"),
    "web's processes": pool_of("web"),
    "gateway": main("gateway"),
    "control": main("control"),
    "control's pool": pool_of("control"),
    "node": main("node"),
    "node's pool": pool_of("node"),
    "beat": main("beat"),
    "Redis's memory": forget_everything,
    "supervisor": supervisor,
    "all services, in good order": stop_and_start_services,
}


@pytest.mark.slow("services start again")
@pytest.mark.parametrize(
    "victim",
    quick_of(VICTIMS, ("control", "node"), "every process in turn; `make test` kills two"),
)
def test_workspaces_reach_their_desired_state_after_each_process_is_killed(
    fleet: Fleet, victim: str, record_property: Callable[[str, object], None]
) -> None:
    runs = [member for member in fleet.members if fleet.desired_state[member] == "running"]
    rests = [member for member in fleet.members if fleet.desired_state[member] == "stopped"]
    assert len(runs) == len(rests) == 2
    # In transition at the kill: a stop, a start, and a new workspace.
    fleet.want_all({runs[0]: "stopped", rests[0]: "running"})
    new = fleet.create("new")
    hit = threading.Event()

    def ask_meanwhile() -> None:
        """Send requests while the victim is down."""
        hit.wait()
        fleet.want_all({runs[1]: "stopped", rests[1]: "running", new: "deleted"})

    asking = threading.Thread(target=ask_meanwhile)
    asking.start()
    at = time.monotonic()
    try:
        VICTIMS[victim](fleet)
    finally:
        hit.set()
        asking.join()
    record_property("recovery_s", round(fleet.recovered(since=at), 1))
    # The bystander is unaffected: same processes, same generation.
    assert fleet.agents_of(fleet.bystander) == fleet.untouched
    assert fleet.watch.doubles == set()


def test_killed_workspace_is_failed_and_can_be_retried(fleet: Fleet) -> None:
    """The services live and the workspace's own processes die."""
    workspace_id = next(member for member in fleet.members if fleet.desired_state[member] == "running")
    (agent,) = fleet.agents_of(workspace_id)
    kill([agent[0]])

    def failed() -> bool:
        query = "SELECT state FROM workspaces_workspace WHERE id = ?"
        return fleet.berth.rows(query, workspace_id.replace("-", ""))[0]["state"] == "failed"

    eventually(failed, limit_s=75, what="that it has gone is noticed")
    fleet.want(workspace_id, "running")
    fleet.recovered()
