"""Proposed moves: feasible, useful, and without oscillation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from portal.common.reasons.reason import Reason
from portal.reclaim.engine import rebalancing
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.engine.movables import ListedMovables, Movable
from portal.reclaim.engine.rebalancing import (
    BlockedRequest,
    PastMove,
    Proposal,
    Rules,
    propose,
)
from portal.scheduling.engine.placement.cluster import Cluster
from provisioning.types import DeviceGrant, NodePlacement, Placement, ResourceRequest
from tests.scheduling.engine.placement.helpers import gpus, node, wants
from tests.suite.choice import examples

POOL = "pool"
NOW = 1_000_000
SLOWED = Reason(RebalanceCode.SLOWED)
RULES = Rules()


class World:
    """Nodes with GPUs and running workspaces, advanced by time."""

    def __init__(self, *sizes: int, prefix: str = "n") -> None:
        self.prefix = prefix
        self.sizes = sizes
        self.cluster = self._empty()
        self.running: dict[str, Movable] = {}
        self.past: list[PastMove] = []
        self.now_s = NOW
        self.scores: dict[str | tuple[str, str], int] = {}

    def _empty(self) -> Cluster:
        names = [f"{self.prefix}{at}" for at in range(len(self.sizes))]
        return Cluster(
            [
                node(name, *gpus(f"{name}-", *[1000] * size))
                for name, size in zip(names, self.sizes, strict=True)
            ]
        )

    def new_cluster(self) -> Cluster:
        """Return a new cluster with the same content."""
        made = self._empty()
        for each in self.running.values():
            made.commit(each.placement, each.allocated)
        return made

    def run(
        self, name: str, at: int, devices: Sequence[int], *, milli: int = 1000, cpu: int = 1000, **fields
    ) -> Movable:
        host = f"{self.prefix}{at}"
        memory = 0 if milli == 1000 else 1000
        request = wants(len(devices), cpu=cpu, model="H100", share_milli=milli, memory_mib=memory)
        grants = tuple(DeviceGrant(f"{host}-{device}", milli, memory) for device in devices)
        place = Placement((NodePlacement(host, grants),))
        held = ResourceRequest(cpu_milli=cpu, memory_mib=1024)
        self.cluster.commit(place, held)
        each = Movable(name, POOL, place, held, request, milli * len(devices), started_s=NOW - 3600)
        self.running[name] = replace(each, **fields)
        return self.running[name]

    def propose(self, waiting: Sequence[BlockedRequest] = (), rules: Rules = RULES) -> list[Proposal]:
        before = self.cluster.snapshot()
        # Any order gives the same result.
        found = propose(
            {POOL: self.cluster},
            sorted(self.running.values(), key=lambda each: each.id[::-1]),
            waiting,
            self.past,
            self.now_s,
            rules,
            self.scores,
        )
        assert self.cluster.snapshot() == before, "a proposal has changed something"
        return found

    def carry_out(self, proposals: Sequence[Proposal], requests: dict[str, ResourceRequest]) -> None:
        """Apply proposals like the queue: moved work leaves, waiting work starts, moved work returns."""
        for proposal in proposals:
            for move in proposal.moves:
                each = self.running[move.workspace]
                assert each.placement == move.source
                self.cluster.release(each.placement, each.allocated)
            if proposal.waiting:
                request = requests[proposal.waiting]
                place = self.cluster.find(request)
                assert place is not None, "who waits does not start"
                self.cluster.commit(place, request)
            for move in proposal.moves:
                self._arrive(self.running[move.workspace], move.target)

    def _arrive(self, each: Movable, target: Placement) -> None:
        # Raises unless it is free.
        self.cluster.commit(target, each.allocated)
        devices = [grant.uuid for grant in target.nodes[0].devices]
        score = min((self.scores.get(uuid, 100) for uuid in devices), default=100)
        self.running[each.id] = replace(
            each,
            placement=target,
            score=score,
            reasons=(SLOWED,) if score < 80 else (),
            started_s=self.now_s,
        )
        self.past.append(PastMove(each.id, self.now_s, each.node, each.devices))


def asks(count: int, name: str = "w", **fields) -> BlockedRequest:
    request = wants(count, model="H100")
    usual = {"milli": count * 1000, "duration_s": 86_400, "since_s": NOW - 600}
    return BlockedRequest(name, ((POOL, request),), **{**usual, **fields})


def where(proposal: Proposal) -> dict[str, str]:
    return {move.workspace: move.target.nodes[0].node for move in proposal.moves}


# --- workspaces with low scores -------------------------------------------------------------------


def test_slowed_workspace_moves_to_a_free_gpu():
    world = World(1, 1)
    world.run("a", 0, [0], score=40, reasons=(SLOWED,))
    (found,) = world.propose()
    assert (where(found), found.gain, found.reason.code, found.waiting) == (
        {"a": "n1"}, 60, RebalanceCode.SLOWED, ""
    )  # fmt: skip


def test_no_move_to_an_equally_slow_gpu():
    world = World(1, 1)
    world.run("a", 0, [0], score=40, reasons=(SLOWED,))
    world.scores["n1-0"] = 59
    assert world.propose() == []
    world.scores["n1-0"] = 60
    assert [each.gain for each in world.propose()] == [20]


def test_next_best_place_is_tried_if_the_best_is_slow():
    world = World(1, 1, 1)
    world.run("a", 0, [0], score=40, reasons=(SLOWED,))
    for slow in ("n1-0", "n2-0"):
        world.scores = {slow: 40}
        (found,) = world.propose()
        assert where(found)["a"] not in (slow[:2], "n0")


def test_workspace_with_a_good_score_no_reason_or_a_notice_is_not_moved():
    world = World(4, 4)
    world.run("content", 0, [0], score=71, reasons=(SLOWED,))
    world.run("unmeasured", 0, [1], score=10)
    world.run("noticed", 0, [2], score=10, reasons=(SLOWED,), can_move=False)
    assert world.propose() == []


def test_sharing_workspace_gets_its_share_of_a_free_gpu():
    world = World(3)
    crowded = Reason(RebalanceCode.CROWDED)
    world.run("a", 0, [0], milli=500, score=66, reasons=(crowded,))
    world.run("b", 0, [0], milli=250)
    world.run("c", 0, [1], milli=250)
    (found,) = world.propose()
    (grant,) = found.moves[0].target.nodes[0].devices
    assert (grant.uuid, grant.milli, grant.memory_mib) == ("n0-2", 500, 1000)


def test_overcommitted_node_is_left_for_another():
    world = World(2)
    world.run("a", 0, [0], score=50, reasons=(Reason(RebalanceCode.OVERCOMMITTED),))
    assert world.propose() == []


def test_moved_workspace_does_not_move_again_or_return_during_cooldown():
    world = World(1, 1)
    world.run("a", 0, [0], score=40, reasons=(SLOWED,))
    world.past = [PastMove("a", NOW - RULES.cool_down_s + 1, "n9", frozenset({"n9-0"}))]
    assert world.propose() == []
    world.past = [PastMove("a", NOW - RULES.cool_down_s, "n9", frozenset({"n9-0"}))]
    assert len(world.propose()) == 1
    world.past = [PastMove("a", NOW - RULES.cool_down_s, "n1", frozenset({"n1-0"}))]
    assert world.propose() == []
    world.past = [PastMove("a", NOW - RULES.return_s, "n1", frozenset({"n1-0"}))]
    assert len(world.propose()) == 1


def test_proposal_for_own_gain_includes_workspaces_not_preemptible():
    world = World(1, 1)
    world.run("a", 0, [0], score=40, reasons=(SLOWED,), preemptible=False)
    assert len(world.propose()) == 1


# --- room for waiting requests --------------------------------------------------------------------


def fragmented() -> World:
    """Two free GPUs on two nodes with two each."""
    world = World(2, 2)
    world.run("a", 0, [0])
    world.run("b", 1, [0])
    return world


def test_one_workspace_moves_to_join_two_free_halves():
    world = fragmented()
    (found,) = world.propose([asks(2)])
    assert (len(found.moves), found.gain, found.waiting) == (1, 2000, "w")
    assert found.reason.code == RebalanceCode.MAKES_ROOM
    world.carry_out([found], {"w": wants(2, model="H100")})


def test_no_move_for_a_request_that_fits_starts_soon_or_is_new():
    world = fragmented()
    assert world.propose([asks(1)]) == []
    assert world.propose([asks(2, eta_s=NOW + RULES.patience_s)]) == []
    assert len(world.propose([asks(2, eta_s=NOW + RULES.patience_s + 1)])) == 1
    assert world.propose([asks(2, since_s=NOW - 59)]) == []


def test_workspace_that_is_not_preemptible_does_not_move_for_a_request():
    world = fragmented()
    for name in "ab":
        world.running[name] = replace(world.running[name], preemptible=False)
    assert world.propose([asks(2)]) == []


def test_workspaces_that_lose_no_work_move_first():
    world = fragmented()
    for dear, cheap in ("ab", "ba"):
        world.running[dear] = replace(world.running[dear], loses_work=True)
        world.running[cheap] = replace(world.running[cheap], loses_work=False)
        (found,) = world.propose([asks(2)])
        assert (list(where(found)), found.lost_work) == ([cheap], 0)


def test_lost_work_never_exceeds_the_work_of_the_waiting_request():
    world = fragmented()
    for name in "ab":
        world.running[name] = replace(world.running[name], loses_work=True, started_s=NOW - 7200)
    assert len(world.propose([asks(2, duration_s=3600)])) == 1
    assert world.propose([asks(2, duration_s=3599)]) == []


def test_search_too_costly_for_one_request_is_repeated_for_a_longer_one():
    world = fragmented()
    for name in "ab":
        world.running[name] = replace(world.running[name], loses_work=True, started_s=NOW - 7200)
    short, long = asks(2, "short", duration_s=60), asks(2, "long", duration_s=86_400)
    (found,) = world.propose([short, long])
    assert found.waiting == "long"


def test_fewest_and_smallest_workspaces_move():
    world = World(4, 4, 4)
    world.run("large", 0, [0, 1])
    world.run("one", 1, [0])
    world.run("two", 1, [1])
    world.run("small", 2, [0])
    (found,) = world.propose([asks(4)])
    assert list(where(found)) == ["small"]


def test_shares_are_consolidated_within_a_node():
    world = World(2)
    world.run("a", 0, [0], milli=500)
    world.run("b", 0, [1], milli=500)
    (found,) = world.propose([asks(1)])
    assert len(found.moves) == 1
    world.carry_out([found], {"w": wants(1, model="H100")})


def test_no_move_without_a_target_for_each_workspace():
    world = World(2, 2)
    world.run("a", 0, [0])
    world.run("b", 1, [0, 1])
    assert world.propose([asks(2)]) == []


def test_two_waiting_requests_get_different_capacity():
    world = World(2, 2, 2)
    for at in range(3):
        world.run(f"r{at}", at, [0])
    found = world.propose([asks(2, "w1"), asks(2, "w2")])
    assert [each.waiting for each in found] == ["w1"]
    world = World(2, 2, 2, 2)
    for at in range(4):
        world.run(f"r{at}", at, [0])
    found = world.propose([asks(2, "w1"), asks(2, "w2")])
    assert [each.waiting for each in found] == ["w1", "w2"]
    world.carry_out(found, {"w1": wants(2, model="H100"), "w2": wants(2, model="H100")})


def test_workspace_with_a_home_on_its_node_moves_only_within_it():
    world = World(2, 2)
    world.cluster = Cluster(
        [node(name, *gpus(f"{name}-", 1000, 1000), labels=(("berth:home", name),)) for name in ("n0", "n1")]
    )
    for at, name in enumerate("ab"):
        each = world.run(name, at, [0])
        tied = replace(each.request, labels=(("berth:home", f"n{at}"),))
        world.running[name] = replace(each, request=tied)
    assert world.propose([asks(2)]) == []


def test_shortfall_of_a_node_is_computed_again_after_a_placement():
    world = World(4, 2, 2, 2, 2)
    world.run("kept-0", 0, [3], preemptible=False)
    for name, at, device in (("a", 0, 0), ("b", 0, 1), ("c", 1, 0), ("d", 1, 1)):
        world.run(name, at, [device])
    for at in (2, 3, 4):
        world.run(f"kept-{at}", at, [0], preemptible=False)
    # The first node lacked one GPU; after the first request it lacks two, and one of these may move.
    with mock.patch.object(rebalancing, "MAX_NODES_TRIED", 1):
        found = world.propose([asks(2, "w1"), asks(2, "w2")])
    assert [(each.waiting, len(each.moves)) for each in found] == [("w1", 1), ("w2", 2)]


def test_failed_search_is_repeated_after_other_moves():
    def at_home(request: ResourceRequest, name: str) -> ResourceRequest:
        return replace(request, labels=(("berth:home", name),))

    world = World(2, 2, 1)
    zone = ("zone", "y")
    world.cluster = Cluster(
        [
            node(
                name,
                *gpus(f"{name}-", *[1000] * size),
                labels=(("berth:home", name), *((zone,) if size > 1 else ())),
            )
            for name, size in (("n0", 2), ("n1", 2), ("n2", 1))
        ]
    )
    a, b = world.run("a", 0, [0], cpu=20_000), world.run("b", 1, [0], cpu=50_000)
    world.running["a"] = replace(a, request=replace(a.request, labels=(zone,)))
    assert b.request.labels == ()
    # The CPU beside b does not suffice for a until b has made room for a smaller workspace.
    pair = at_home(wants(2, model="H100"), "n0")
    one = at_home(wants(1, cpu=40_000, model="H100"), "n1")
    first, last = (replace(asks(2, name), requests=((POOL, pair),)) for name in ("first", "last"))
    between = replace(asks(1, "between"), requests=((POOL, one),))
    assert world.propose([first, last]) == []
    found = world.propose([first, between, last])
    assert [(each.waiting, where(each)) for each in found] == [
        ("between", {"b": "n2"}),
        ("last", {"a": "n1"}),
    ]
    world.carry_out(found, {"between": one, "last": pair})


def test_only_workspaces_on_the_closest_nodes_are_read():
    world = World(4, 4, *[4] * 6)
    for at in range(8):
        for device in range(2 if at < 2 else 4):
            world.run(f"r{at}-{device}", at, [device])
    asked: list[str] = []

    class Counted(ListedMovables):
        def on_nodes(self, pool: str, nodes: Collection[str]) -> Sequence[Movable]:
            asked.extend(nodes)
            return super().on_nodes(pool, nodes)

    def proposed(ahead: int) -> list[Proposal]:
        asked.clear()
        people = Counted(list(world.running.values()))
        with (
            mock.patch.object(rebalancing, "MAX_NODES_TRIED", 2),
            mock.patch.object(rebalancing, "NODES_READ_AHEAD", ahead),
        ):
            return propose({POOL: world.cluster}, people, [asks(4)], [], NOW, RULES, {})

    found = proposed(1)
    assert (len(found), sorted(asked)) == (1, ["n0", "n1"])
    # Several requests are read at once, each once.
    assert proposed(3) == found
    assert len(asked) == len(set(asked)) == 3


# --- invariants -----------------------------------------------------------------------------------


@st.composite
def worlds(draw, prefix: str = "n"):
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    world = World(*sizes, prefix=prefix)
    free = {at: list(range(size)) for at, size in enumerate(sizes)}
    for number in range(draw(st.integers(0, 8))):
        at = draw(st.sampled_from(sorted(free)))
        count = draw(st.integers(1, 2))
        if len(free[at]) < count:
            continue
        taken = [free[at].pop(0) for _ in range(count)]
        share = draw(st.sampled_from([1000, 1000, 500])) if count == 1 else 1000
        low = draw(st.sampled_from([100, 100, 30, 60]))
        world.run(
            f"r{number}",
            at,
            taken,
            milli=share,
            score=low,
            reasons=(SLOWED,) if low < 80 else (),
            preemptible=draw(st.booleans()),
            loses_work=draw(st.booleans()),
            started_s=NOW - draw(st.integers(0, 9)) * 10_000,
        )
        for device in taken:
            world.scores[f"{prefix}{at}-{device}"] = low
    waiting = [
        asks(draw(st.integers(1, 4)), f"w{number}", duration_s=draw(st.sampled_from([600, 86_400])))
        for number in range(draw(st.integers(0, 3)))
    ]
    return world, waiting


@settings(max_examples=examples(250), deadline=None, derandomize=True)
@given(worlds())
def test_all_proposals_of_a_pass_are_feasible_together(given_world):
    """No over-allocation, a place for each moved workspace, each request starts, none moves twice."""
    world, waiting = given_world
    found = world.propose(waiting)
    moved = [move.workspace for each in found for move in each.moves]
    assert len(moved) == len(set(moved))
    for each in found:
        assert each.gain >= (1 if each.waiting else RULES.min_gain)
        for move in each.moves:
            row = world.running[move.workspace]
            assert move.target != move.source
            assert row.preemptible or not each.waiting, "work of others was moved that may not be"
            assert each.waiting or (row.score <= RULES.low_score and row.reasons)
    world.carry_out(found, {each.id: each.requests[0][1] for each in waiting})
    for state in world.cluster.snapshot():
        assert state.free_cpu_milli >= 0
        assert all(0 <= device.free_milli <= 1000 for device in state.devices)


@settings(max_examples=examples(120), deadline=None, derandomize=True)
@given(worlds(), st.sampled_from([60, 86_400, 7 * 86_400]))
def test_repeated_passes_converge_without_oscillation(given_world, step_s):
    """Without new requests, applying each step by minutes and cooldowns converges."""
    world, waiting = given_world
    requests = {each.id: each.requests[0][1] for each in waiting}
    been: dict[str, list[tuple[int, Placement]]] = {}
    for _ in range(30):
        found = world.propose(waiting)
        if not found:
            break
        for each in found:
            for move in each.moves:
                assert all(
                    world.now_s - at_s >= RULES.return_s or place != move.target
                    for at_s, place in been.get(move.workspace, ())
                ), "it goes back"
                last = max((at_s for at_s, _ in been.get(move.workspace, ())), default=None)
                assert last is None or world.now_s - last >= RULES.cool_down_s
                been.setdefault(move.workspace, []).append((world.now_s, move.source))
        world.carry_out(found, requests)
        started = {each.waiting for each in found}
        waiting = [each for each in waiting if each.id not in started]
        world.now_s += step_s
    else:
        raise AssertionError("it never comes to rest")


@settings(max_examples=examples(120), deadline=None, derandomize=True)
@given(st.data())
def test_proposals_do_not_depend_on_input_order_and_repeat(data):
    world, waiting = data.draw(worlds())
    first = world.propose(waiting)
    assert world.propose(waiting) == first
    world.running = dict(reversed(list(world.running.items())))
    assert world.propose(waiting) == first
