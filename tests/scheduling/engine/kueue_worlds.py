"""Random small sites for the engine and the Kueue model, with the decisions of both."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.model import Policy, PreemptionCode, Running, Snapshot, Workload
from portal.scheduling.engine.scheduler import schedule
from tests.scheduling.engine.kueue_classical import classical
from tests.scheduling.engine.kueue_model import (
    FAIR_SHARING,
    IN_CLUSTER_QUEUE,
    RECLAMATION,
    Info,
    Model,
    Node,
    Quota,
    Targets,
)

REASONS = {
    PreemptionCode.IN_TEAM: IN_CLUSTER_QUEUE,
    PreemptionCode.RECLAIM: RECLAMATION,
    PreemptionCode.FAIR_SHARE: FAIR_SHARING,
}
NOW_S = 1000
ENDLESS_S = 10**9
POLICY = Policy(min_run_s=0)
"""No run-time protection, and nothing ends by itself: Kueue knows neither."""


@dataclass(frozen=True)
class World:
    """A site with one request."""

    teams: tuple[Team, ...]
    cohorts: tuple[Cohort, ...]
    running: tuple[Running, ...]
    incoming: Workload

    def snapshot(self) -> Snapshot:
        return Snapshot(NOW_S, self.teams, self.cohorts, self.running, queued=(self.incoming,), policy=POLICY)

    def model(self) -> Model:
        nodes = [
            (Node(each.name, _quotas(each), Fraction(each.weight_milli, 1000)), each.parent)
            for each in self.cohorts
        ]
        nodes += [
            (
                Node(
                    each.name,
                    _quotas(each),
                    Fraction(each.weight_milli, 1000),
                    reclaim=each.reclaim,
                    is_queue=True,
                ),
                each.cohort,
            )
            for each in self.teams
        ]
        return Model(nodes, [_info(each.workload, each.started_s) for each in self.running])

    def asked(self) -> Info:
        return _info(self.incoming, NOW_S)


def _quotas(node: Team | Cohort) -> dict[str, Quota]:
    return {name: Quota(limit.nominal, limit.borrowing, limit.lending) for name, limit in node.limits.items()}


def _info(workload: Workload, at_s: int) -> Info:
    return Info(workload.id, workload.team, dict(workload.amounts), workload.priority, at_s)


def random_world(seed: int) -> World:
    """The same world for the same seed: up to five cohorts in each other, seven teams, three resources."""
    chance = random.Random(seed)
    resources = ("gpu:a", "gpu:b", "cpu_milli")[: chance.choice((1, 1, 2, 2, 3))]
    maximum = chance.choice((2, 4, 6))
    bounded = chance.random() < 0.5
    weights = chance.choice(((1000,), (1000, 2000, 500), (1000, 3000, 0)))
    cohorts: list[Cohort] = []
    for number in range(chance.choice((1, 1, 2, 3, 4, 5))):
        parent = cohorts[chance.randrange(len(cohorts))].name if cohorts and chance.random() < 0.9 else ""
        limits = {
            name: _limit(chance, maximum // 2, bounded and parent != "")
            for name in resources
            if chance.random() < 0.3
        }
        cohorts.append(Cohort(f"c{number}", parent, limits, chance.choice(weights)))
    teams = tuple(
        Team(
            f"t{number}",
            chance.choice([each.name for each in cohorts]) if chance.random() < 0.95 else "",
            # A ClusterQueue has a quota for every resource its workloads may request, possibly 0.
            {name: _limit(chance, maximum, bounded) for name in resources},
            weight_milli=chance.choice(weights),
            reclaim=chance.random() < 0.9,
        )
        for number in range(chance.randint(1, 7))
    )
    world = World(teams, tuple(cohorts), (), Workload("none", teams[0].name, {}))
    model = world.model()
    running: list[Running] = []
    over = chance.random() < 0.1
    for number in range(chance.randint(0, 24)):
        workload = _workload(chance, f"w{number}", teams, resources, max(1, maximum // 2))
        info = _info(workload, 0)
        # Sometimes usage exceeds quota, because limits were lowered.
        if model.fits(info) or (over and chance.random() < 0.3):
            model.add(info)
            running.append(Running(workload, chance.randrange(6) * 100))
    incoming = _workload(chance, "incoming", teams, resources, max(2, maximum // 2))
    return World(teams, tuple(cohorts), tuple(running), incoming)


def _limit(chance: random.Random, maximum: int, bounded: bool) -> Limit:
    def bound() -> int | None:
        return chance.randint(0, maximum) if bounded and chance.random() < 0.4 else None

    return Limit(chance.choice((0, chance.randint(0, maximum))), bound(), bound())


def _workload(
    chance: random.Random, name: str, teams: tuple[Team, ...], resources: tuple[str, ...], maximum: int
) -> Workload:
    amounts = {resource: chance.randint(0, maximum) for resource in resources if chance.random() < 0.8}
    if not any(amounts.values()):
        amounts[resources[0]] = 1
    return Workload(
        name,
        chance.choice(teams).name,
        amounts,
        priority=chance.choice((0, 0, 0, 1, 2)),
        duration_s=ENDLESS_S,
    )


@dataclass(frozen=True)
class Decided:
    """The decisions of engine and model, and their difference (empty if equal).

    `choice` is true if only the model skips the flavor before searching victims.
    """

    engine: Targets
    fair: list[Targets]
    choice: bool
    classical: bool
    difference: str


def decide(world: World) -> Decided:
    """Decide one request by the engine's own cycle and by the model, with fair sharing and classically."""
    cycle = schedule(world.snapshot())
    engine = frozenset((each.workload, REASONS[each.reason]) for each in cycle.victims)
    model, request = world.model(), world.asked()
    short = model.needs_preemption(request)
    fair = model.fair(request)
    choice = bool(short) and engine not in fair and not model.may_preempt(request, short, fair_sharing=True)
    if choice:
        fair = model.fair(request, gated=False)
    difference = ""
    if bool(cycle.starts) != (short == set()):
        difference = f"starts: {cycle.starts}, short in the model: {short}"
    elif engine not in fair:
        difference = f"victims: {sorted(engine)}, in the model: {[sorted(each) for each in fair]}"
    compared = bool(short) and model.may_preempt(request, short, fair_sharing=False)
    if compared and short and not difference:
        compared, difference = _beside_classical(world, model, request, short, engine)
    return Decided(engine, fair, choice, compared, difference)


def _beside_classical(
    world: World, model: Model, request: Info, short: set[str], engine: Targets
) -> tuple[bool, str]:
    """Return whether classical preemption must agree here, and the difference.

    Both agree while no other team borrows, and for an owner with one borrower; several borrowers are ordered
    differently, but the owner succeeds in both or neither. This holds for one resource: fair sharing also
    counts borrowing of others.
    """
    queue = model.queue(request.queue)
    borrowers = [
        other
        for other in (queue.root().queues() if queue.parent else ())
        if other is not queue and not other.within_nominal_in(set(other.quotas))
    ]
    one_resource = len({name for each in world.teams for name in each.limits}) == 1
    model.add(request)
    owner = one_resource and queue.within_nominal_in(short)
    model.remove(request)
    if borrowers and not owner:
        return False, ""
    outcomes = classical(model, request)
    same = bool(outcomes) == bool(engine)
    if len(borrowers) <= 1:
        same = {name for name, _ in outcomes} == {name for name, _ in engine}
    return True, "" if same else f"victims: {sorted(engine)}, classically: {sorted(outcomes)}"
