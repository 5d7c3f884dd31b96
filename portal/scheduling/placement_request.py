"""Requests for the queue and placement: where they may go, and the amounts that they are charged.

A request for accelerators of any model is a choice between models, each charged to its own quota. Any other
request has exactly one `Variant`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from portal.catalog.models import Flavor, Template
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.held_environments import digests_in, environment_need
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_commands import config_of
from portal.quota.limits import resources
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.types import (
    ARCHIVED_HOME_LABEL,
    AWAY_HOME_LABEL,
    HOME_LABEL,
    LOST_HOME_LABEL,
    MOVING_HOME_LABEL,
    NodeReason,
    SoftwareRequirements,
)
from portal.scheduling.pool_nodes import PoolNodes, without_environments
from portal.scheduling.software_requirements import requirements_of
from portal.workspaces.homes import move_rates
from portal.workspaces.homes.places import HomeLocation, Homes, has_separate_homes
from provisioning import messages, mounts
from provisioning.errors import ProvisioningError
from provisioning.registry import driver_for
from provisioning.types import (
    AgentSpec,
    AppSpec,
    Placement,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)

AVAILABLE_SOON_LABELS = frozenset({MOVING_HOME_LABEL, ARCHIVED_HOME_LABEL, AWAY_HOME_LABEL})
"""Labels for homes that are, or soon will be, on a machine where their users can start."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to meet a request: the resources to find, and the amounts to charge.

    If there are several variants, each has a class of `models`, charged to `resource`. `memory_mib` is the
    memory of the largest device.
    """

    request: ResourceRequest
    amounts: Mapping[str, int]
    resource: str = ""
    models: tuple[str, ...] = ()
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class MoveTarget:
    """The destination of a move, which is tried first."""

    pool: UUID
    placement: Placement


@dataclass(frozen=True, slots=True)
class MovableHome:
    """A home that can move with a start: `size_mib`, on the node `source` of `pool`.

    Other moves from that node still have to copy `ahead_mib`. `request` is the request for the other nodes.
    """

    pool: PoolNodes
    source: str
    size_mib: int
    ahead_mib: int
    request: PlacementRequest

    def seconds(self, more_mib: int = 0) -> int:
        """Return the expected duration of the move in seconds, after other moves of `more_mib`."""
        return move_rates.seconds_of(
            self.size_mib + self.ahead_mib + more_mib, self.pool.home_mib_s or move_rates.DEFAULT_MIB_S
        )

    def rounded_s(self, more_mib: int = 0) -> int:
        """Return the seconds rounded up to a power of two, so that the queue has few different requests."""
        return 1 << (self.seconds(more_mib) - 1).bit_length()


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A request with the pools that may take it, in order of preference.

    - `software`: requirements of its template on a node.
    - `refusals`: pools whose drivers can never run the request, with the reason.
    - `target`: destination of a move.
    - `new_home`: its user has no home in these pools, so it stays on the node of this start.
    - `movable_home`: the home that can move with the start; None if it cannot.
    - `place_key`: equal for requests that the same nodes can take, except for the amounts.
    """

    template: Template
    request: ResourceRequest
    pools: tuple[PoolNodes, ...]
    variants: tuple[Variant, ...]
    software: SoftwareRequirements
    refusals: tuple[NodeReason, ...] = field(default=())
    target: MoveTarget | None = None
    new_home: bool = False
    movable_home: MovableHome | None = None
    place_key: str = field(init=False)

    def __post_init__(self) -> None:
        pools = ",".join(pool.pool.slug for pool in self.pools)
        along = f"|{self.movable_home.rounded_s()}" if self.movable_home is not None else ""
        object.__setattr__(self, "place_key", f"{self.software!r}|{pools}|{self.request!r}{along}")

    @classmethod
    def of_size(
        cls, request: ResourceRequest, pools: Sequence[PoolNodes], *, simulated: bool
    ) -> PlacementRequest:
        """Return a request by size alone, for any template, without software requirements."""
        variants = tuple(_variants(request, pools, simulated=simulated))
        return cls(Template(), request, tuple(pools), variants, SoftwareRequirements())

    def at_home(self, node: str) -> PlacementRequest:
        """Return the request of a user whose home is on the node."""
        label = (HOME_LABEL, node)
        return replace(
            self,
            request=_with_label(self.request, label),
            variants=tuple(
                replace(variant, request=_with_label(variant.request, label)) for variant in self.variants
            ),
            new_home=False,
        )

    def away_from_home(self, pool: PoolNodes) -> PlacementRequest:
        """Return the request on any node of the pool, to which its home would move."""
        return replace(
            self,
            request=_without_label(self.request, HOME_LABEL),
            pools=(pool,),
            variants=tuple(
                replace(variant, request=_without_label(variant.request, HOME_LABEL))
                for variant in self.variants
            ),
            target=None,
            new_home=True,
            movable_home=None,
        )

    def variant_of(self, amounts: Mapping[str, int]) -> Variant:
        """Return the variant with these amounts, or the only variant."""
        if len(self.variants) == 1:
            return self.variants[0]
        return next(variant for variant in self.variants if variant.amounts == amounts)

    @property
    def possible(self) -> bool:
        """Whether an empty pool with all nodes and the software available could take the request."""
        return next(self._pools_that_could_fit(), None) is not None

    @property
    def maintenance(self) -> PoolNodes | None:
        """The pool that leaves maintenance first, if all suitable pools are in maintenance."""
        if not any(pool.maintenance for pool in self.pools):
            return None
        suitable = list(self._pools_that_could_fit())
        if not all(pool.maintenance for pool in suitable):
            return None
        return min(suitable, key=maintenance_end, default=None)

    @property
    def silent(self) -> tuple[Pool, str] | None:
        """The silent pool and node that the request waits for, if no reporting node could take it."""
        if not any(pool.silent_nodes for pool in self.pools):
            return None
        suitable = list(self._pools_that_could_fit())
        request = self._available_request()
        for pool in suitable:
            if pool.could_fit_on_reporting(pool.with_requirements(request, self.software)):
                return None
        silent = next((pool for pool in suitable if pool.silent_nodes), None)
        if silent is None:
            return None
        fitting = silent.fitting_nodes(silent.with_requirements(request, self.software))
        return silent.pool, next((name for name in fitting if name in silent.silent_nodes), "")

    def _pools_that_could_fit(self) -> Iterator[PoolNodes]:
        """Yield the pools that could take the request if empty, with all nodes in service."""
        request = self._available_request()
        for pool in self.pools:
            if pool.could_ever_fit(pool.with_requirements(request, self.software)):
                yield pool

    def _available_request(self) -> ResourceRequest:
        """Return the request as if its software and its home were available."""
        request = without_environments(self.request)
        if self.moving_home or self.archived_home or self.away_home:
            # The home will be available again soon.
            labels = tuple(
                (HOME_LABEL, value) if name in AVAILABLE_SOON_LABELS else (name, value)
                for name, value in request.labels
            )
            request = replace(request, labels=labels)
        return request

    @property
    def home(self) -> str:
        """The machine with the user's home if the request can start there, or an empty string."""
        return next((value for name, value in self.request.labels if name == HOME_LABEL), "")

    @property
    def lost_home(self) -> str:
        """The removed machine with the user's home, or an empty string."""
        return next((value for name, value in self.request.labels if name == LOST_HOME_LABEL), "")

    @property
    def moving_home(self) -> str:
        """The machine to which the user's home is being moved, or an empty string."""
        return next((value for name, value in self.request.labels if name == MOVING_HOME_LABEL), "")

    @property
    def archived_home(self) -> str:
        """The machine where the user's home is being archived or restored, or an empty string."""
        return next((value for name, value in self.request.labels if name == ARCHIVED_HOME_LABEL), "")

    @property
    def away_home(self) -> str:
        """The machine where the user's home exists only as an archive, or an empty string."""
        return next((value for name, value in self.request.labels if name == AWAY_HOME_LABEL), "")

    @property
    def missing_environment(self) -> str:
        """The digest of the environment if no node of the pools has it, or an empty string."""
        for digest in digests_in(self.request.needs):
            need = environment_need(digest)
            if not any(
                pool.runs_any_software or any(need in node.provides for node in pool.nodes)
                for pool in self.pools
            ):
                return digest
        return ""


def maintenance_end(pool: PoolNodes) -> datetime:
    """Return the planned end of the maintenance that the pool is in."""
    assert pool.maintenance is not None  # called only for pools in maintenance
    return pool.maintenance.until


def request_of(data: Mapping[str, Any]) -> ResourceRequest:
    """Parse the stored JSON form."""
    return messages.load(data, ResourceRequest)


def candidate_pools(flavor: Flavor, pools: Mapping[UUID, PoolNodes]) -> list[PoolNodes]:
    """Return the pools that may take the flavor: its own if set, else every enabled real pool."""
    if flavor.pool_id is not None:
        own = pools.get(flavor.pool_id)
        return [own] if own is not None and own.pool.takes_work else []
    return [pool for pool in pools.values() if pool.pool.takes_work and not pool.pool.simulated]


class PlacementRequests:
    """Creates `PlacementRequest`s for templates and flavors. Caches the drivers' answers."""

    def __init__(self, pools: Mapping[UUID, PoolNodes]) -> None:
        self._pools = pools
        self._refusals: dict[tuple[UUID, UUID, ResourceRequest], str] = {}
        self._known: dict[
            tuple[UUID, UUID, ResourceRequest, HomeLocation | None, bool], PlacementRequest
        ] = {}

    def build(
        self,
        template: Template,
        flavor: Flavor,
        data: Mapping[str, Any] | None = None,
        *,
        homes: Homes | None = None,
        move_home: bool = False,
    ) -> PlacementRequest:
        """Return the request for a flavor, or the one stored with a workspace (`data`).

        `homes` are the locations of the user's home, which the request must use; None if the user is unknown.
        With `move_home`, the home may move regardless of its size.
        """
        request = request_of(flavor.as_request() if data is None else data)
        pool, home = self._home(flavor, homes) if homes and request.nodes == 1 else (None, None)
        if home is not None and not (home.moves_by_itself or move_home):
            home = replace(home, movable_mib=None)
        new_home = homes is not None and home is None and request.nodes == 1
        key = (template.pk, flavor.pk, request, home, new_home)
        result = self._known.get(key)
        if result is None:
            result = self._new(template, flavor, request, home)
            if new_home:
                result = replace(result, new_home=True)
            if home is not None and home.movable_mib is not None and pool is not None:
                result = _with_movable_home(result, pool, home)
            self._known[key] = result
        return result

    def _home(self, flavor: Flavor, homes: Homes) -> tuple[PoolNodes, HomeLocation] | tuple[None, None]:
        """Return the home's location in the flavor's pools, preferably one that is not lost."""
        places = [
            (pool, homes[pool.pool.pk])
            for pool in candidate_pools(flavor, self._pools)
            if pool.pool.pk in homes and has_separate_homes(pool.pool)
        ]
        return next((place for place in places if not place[1].lost), next(iter(places), (None, None)))

    def _new(
        self, template: Template, flavor: Flavor, request: ResourceRequest, home: HomeLocation | None
    ) -> PlacementRequest:
        pools, refusals = [], []
        for pool in candidate_pools(flavor, self._pools):
            refusal = self._refusal_of(pool.pool, template, request)
            if refusal:
                reason = Reason(PlacementCode.REFUSED_BY_DRIVER, {"message": refusal})
                refusals.append((pool.pool.name, reason))
            else:
                pools.append(pool)
        if home:
            if home.moving_to:
                label = (MOVING_HOME_LABEL, home.moving_to)
            elif home.archived:
                label = (ARCHIVED_HOME_LABEL, home.node)
            elif home.away:
                label = (AWAY_HOME_LABEL, home.node)
            else:
                label = (LOST_HOME_LABEL if home.lost else HOME_LABEL, home.node)
            request = _with_label(request, label)
        if template.mounts:
            folders = (mounts.need_of(mount) for mount in template.mounts)
            request = replace(request, needs=(*request.needs, *folders))
        variants = tuple(_variants(request, pools, simulated=flavor.simulated))
        software = requirements_of(template, request.accelerators, request.needs)
        return PlacementRequest(template, request, tuple(pools), variants, software, tuple(refusals))

    def _refusal_of(self, pool: Pool, template: Template, request: ResourceRequest) -> str:
        key = (pool.pk, template.pk, request)
        if key not in self._refusals:
            self._refusals[key] = refused_by_driver(pool, template, request)
        return self._refusals[key]


def _with_movable_home(
    placement_request: PlacementRequest, pool: PoolNodes, home: HomeLocation
) -> PlacementRequest:
    """Return the request with its movable home, unless the pool's driver cannot run the request."""
    assert home.movable_mib is not None  # checked by the caller
    if not any(candidate is pool for candidate in placement_request.pools):
        return placement_request
    elsewhere = placement_request.away_from_home(pool)
    along = MovableHome(pool, home.node, home.movable_mib, home.ahead_mib, elsewhere)
    return replace(placement_request, movable_home=along)


def _with_label(request: ResourceRequest, label: tuple[str, str]) -> ResourceRequest:
    return replace(request, labels=(*request.labels, label))


def _without_label(request: ResourceRequest, name: str) -> ResourceRequest:
    return replace(request, labels=tuple(label for label in request.labels if label[0] != name))


def refused_by_driver(pool: Pool, template: Template, request: ResourceRequest) -> str:
    """Return why the pool's driver can never run the request, or an empty string. Does no I/O.

    Returns an empty string if the driver's client library is not installed here: then the node's worker
    validates the request.
    """
    probe = WorkspaceSpec(
        ref=WorkspaceRef(workspace_id=str(UUID(int=0)), generation=1),
        name="probe",
        owner="probe",
        team="probe",
        template=template.slug,
        app=AppSpec(argv=template.command, env=template.env, ready_path=template.ready_path),
        resources=request,
        agent=AgentSpec(url="", token=""),
        app_token="",
    )
    try:
        driver_for(config_of(pool)).validate(probe)
    except ProvisioningError as error:
        # A pool with invalid settings must not block requests elsewhere.
        return error.message
    return ""


def _variants(request: ResourceRequest, pools: Sequence[PoolNodes], *, simulated: bool) -> Iterable[Variant]:
    accelerators = request.accelerators
    if accelerators.mig_profile or not accelerators.count or accelerators.model:
        yield Variant(request, resources.amounts_of(request, simulated=simulated))
        return
    sizes: dict[str, int] = {}
    for pool in pools:
        for model, memory_mib in pool.device_sizes.items():
            if not accelerators.models or model in accelerators.models:
                sizes[model] = max(sizes.get(model, 0), memory_mib)
    classes: dict[str, list[str]] = {}
    for model in sorted(sizes):
        classes.setdefault(resources.gpu(model), []).append(model)
    # The smallest first, because it is assumed if all else is equal.
    by_size = sorted((max(sizes[model] for model in models), name) for name, models in classes.items())
    for memory_mib, resource in by_size:
        models = tuple(classes[resource])
        narrowed = replace(request, accelerators=replace(accelerators, model="", models=models))
        amounts = resources.amounts_of(request, model=models[0], simulated=simulated)
        yield Variant(narrowed, amounts, resource, models, memory_mib)
    if not classes:
        yield Variant(request, resources.amounts_of(request, simulated=simulated))
