"""The optimised search agrees with the reference search on generated clusters."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest import mock

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from portal.common.reasons.reason import Reason
from portal.reclaim.engine import rebalancing
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.engine.rebalancing import BlockedRequest, PastMove, Rules
from tests.reclaim import rebalancing_reference as reference
from tests.reclaim.test_rebalancing_engine import NOW, POOL, SLOWED, World, wants
from tests.suite.choice import examples

OTHER = "other"
OF_NODE = [
    Reason(RebalanceCode.OVERCOMMITTED),
    Reason(RebalanceCode.SHORT_OF_CPU),
    Reason(RebalanceCode.SHORT_OF_MEMORY),
    Reason(RebalanceCode.WORK_SLOWER, {"sign": "node_short"}),
]
OF_DEVICE = [SLOWED, Reason(RebalanceCode.WORK_SLOWER, {"sign": "held_down"})]
DAY = 86_400


def world_of(chance: Random, prefix: str, pool: str) -> World:
    """A few nodes with half of the GPUs in use, covering all cases of the search."""
    sizes = [chance.choice([2, 4, 4]) for _ in range(chance.randint(3, 6))]
    world = World(*sizes, prefix=prefix)
    full = chance.choice([0.4, 0.6, 0.8])
    for at, size in enumerate(sizes):
        free = list(range(size))
        while free:
            devices = [free.pop(0)]
            if chance.random() > full:
                continue
            kind = chance.choice(["whole", "whole", "pair", "half", "halves"])
            if kind == "pair" and free:
                devices.append(free.pop(0))
            for _ in range(2 if kind == "halves" else 1):
                _run(world, chance, f"{prefix}{at}-{devices[0]}", at, devices, kind, pool)
    for name in range(len(sizes)):
        for device in range(sizes[name]):
            world.scores[f"{prefix}{name}-{device}"] = chance.choice([100, 100, 70, 30])
        world.scores[pool, f"{prefix}{name}"] = chance.choice([100, 100, 100, 70, 30])
    return world


def _run(world: World, chance: Random, name: str, at: int, devices: list[int], kind: str, pool: str) -> None:
    half = kind in ("half", "halves")
    score = chance.choice([100, 100, 100, 60, 30])
    each = world.run(
        f"{name}-{len(world.running)}",
        at,
        devices,
        milli=500 if half else 1000,
        cpu=chance.choice([1000, 7000]),
        score=score,
        reasons=(chance.choice(chance.choice([OF_DEVICE, OF_DEVICE, OF_NODE])),) if score < 80 else (),
        preemptible=chance.random() < 0.9,
        loses_work=chance.random() < 0.6,
        started_s=NOW - chance.randint(0, 3) * 20_000,
        can_move=chance.random() < 0.95,
        pool=pool,
    )
    if chance.random() < 0.2:
        there = f"{world.prefix}{chance.randrange(len(world.sizes))}"
        left = chance.choice([frozenset[str](), frozenset({f"{there}-0", f"{there}-1"})])
        world.past.append(
            PastMove(each.id, NOW - chance.choice([3600, 2 * DAY, 2 * DAY, 9 * DAY]), there, left)
        )


def request_of(chance: Random, name: str) -> BlockedRequest:
    count = chance.choice([2, 3, 4, 4])
    request = wants(count, cpu=chance.choice([1000, 1000, 1000, 45_000]), model="H100")
    pools = chance.choice([(POOL,), (POOL, OTHER), (OTHER, POOL)])
    return BlockedRequest(
        name,
        tuple((pool, request) for pool in pools),
        count * 1000,
        chance.choice([600, 15_000, DAY]),
        NOW - chance.choice([30, *[600] * 9]),
        chance.choice([NOW + 60, NOW + DAY, *[None] * 8]),
    )


@settings(max_examples=examples(200), deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.integers(0, 2**32))
def test_proposals_equal_those_of_the_reference_search(seed):
    chance = Random(seed)
    worlds = {POOL: world_of(chance, "n", POOL), OTHER: world_of(chance, "m", OTHER)}
    running = [each for world in worlds.values() for each in world.running.values()]
    past = [each for world in worlds.values() for each in world.past]
    scores = {uuid: score for world in worlds.values() for uuid, score in world.scores.items()}
    waiting = [request_of(chance, f"w{number}") for number in range(chance.randint(0, 5))]
    limits = {"max_moves": chance.choice([1, 2, 8]), "max_proposals": chance.choice([2, 8, 8])}
    rules = replace(Rules(), **limits)
    looked_at, ahead = chance.choice([1, 2, 8]), chance.choice([1, 2, 32])
    clusters = {pool: world.cluster for pool, world in worlds.items()}
    with (
        mock.patch.object(rebalancing, "MAX_NODES_TRIED", looked_at),
        mock.patch.object(rebalancing, "NODES_READ_AHEAD", ahead),
    ):
        found = rebalancing.propose(clusters, running, waiting, past, NOW, rules, scores)
    case = reference.Case(past, NOW, rules, scores, looked_at)
    pools = {pool: world.new_cluster for pool, world in worlds.items()}
    assert found == reference.propose(pools, running, waiting, case)
