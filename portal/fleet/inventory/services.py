"""Writes pools, nodes and devices, mostly from inventories."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError, Q
from django.utils import timezone

from portal.common.actors import SYSTEM, SystemActor
from portal.common.constraints import violates
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import held_environments, locations, notices, pools
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.domain_events import (
    CapacityChanged,
    CapacityFreed,
    InventoryApplied,
    NodeForgotten,
    NodesChanged,
    NodeUncordoned,
)
from portal.fleet.inventory.inventory_sync import UNSEEN_STATES, apply_devices
from portal.fleet.inventory.models import Device, Node, Pool, PoolState
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from provisioning.errors import GpuBeingReset, ProvisioningError
from provisioning.registry import traits_of
from provisioning.traits import DeviceChecks
from provisioning.types import Failure, Inventory, NodeInfo

SILENT_AFTER_INVENTORIES = 3
POLL_INTERVAL_S = 10
PLACED_BY = ("cpu_milli", "memory_mib", "programs", "provides", "labels")
"""Attributes of a node used by placement, besides its devices. Free disk space is compared separately."""
REPORTED = (
    *PLACED_BY, "disk_mib", "isolation", "limits", "limited", "accelerator_note", "warnings", "environments",
    "driver_version", "cuda_version", "facts", "accelerator_state", "online", "seen_at",
)  # fmt: skip
"""Attributes of a node that an inventory writes."""
DISK_CHANGED = 8
"""Free disk space counts as changed if it changes by at least one part in this many."""


@transaction.atomic
def create_pool(
    *, actor: User | SystemActor, slug: str, name: str, driver: str, config: dict[str, Any] | None = None
) -> Pool:
    """Add a pool and request its inventory. Raises `NotAllowed`, `InvalidInput` and `StateConflict`."""
    require_operator(actor)
    config = config or {}
    try:
        traits = traits_of(driver)
    except ProvisioningError as error:
        raise pools.refused_by_driver(error, "driver") from error
    pool = Pool(
        slug=slug,
        name=name,
        driver=driver,
        config=config,
        simulated=traits.simulated,
        inventory_due_at=timezone.now(),
    )
    if traits.device_checks is not DeviceChecks.NODE:
        # Do not keep devices back for checks that are meaningless or cannot run in this pool. Operators can
        # change this.
        pool.check_every_hours = pool.hand_out_max_age_hours = 0
        pool.check_required = pool.scrub_required = False
    try:
        pool.full_clean(validate_constraints=False)
    except ValidationError as error:
        raise InvalidInput(Reason(InventoryCode.POOL_NOT_VALID), errors=error.message_dict) from error
    pools.require_driver(pool)
    try:
        with transaction.atomic():
            pool.save()
    except IntegrityError as error:
        if not violates(error, Pool, "pool_slug_unique"):
            raise
        reason = Reason(InventoryCode.POOL_SLUG_TAKEN, {"slug": slug})
        raise StateConflict(reason, code=ProblemCode.SLUG_TAKEN, errors={"slug": [reason]}) from error
    pools.keep_created(actor, pool)
    kind = "a simulated pool" if pool.simulated else "the pool"
    emit(CapacityChanged())
    events.record(actor=actor, kind=AuditKind.POOL_CREATED, pool=pool, message=f"added {kind} {pool.name}")
    return pool


def pools_due() -> list[Pool]:
    now = timezone.now()
    return list(
        Pool.objects.filter(enabled=True).filter(
            Q(inventory_due_at__isnull=True) | Q(inventory_due_at__lte=now)
        )
    )


def mark_asked(pool: Pool) -> None:
    """Schedule the next inventory, and mark the pool as unreachable if it has been silent for too long."""
    now = timezone.now()
    Pool.objects.filter(pk=pool.pk).update(
        inventory_due_at=now + timedelta(seconds=settings.INVENTORY_INTERVAL_S)
    )
    silence = timedelta(seconds=settings.INVENTORY_INTERVAL_S * SILENT_AFTER_INVENTORIES)
    if pool.inventory_at and now - pool.inventory_at > silence and pool.state == PoolState.ONLINE:
        _set_state(
            pool,
            PoolState.UNREACHABLE,
            sentence_of(Reason(InventoryCode.POOL_SILENT)),
        )
    # A node with a silent worker gets no new work, even if other nodes of the pool answer.
    if pool.runs_on_node:
        for node in pool.nodes.filter(online=True, seen_at__lt=now - silence):
            _node_offline(pool, node)


@transaction.atomic
def apply_inventory(*, pool: Pool, inventory: Inventory) -> None:
    """Apply an inventory: new, changed and missing nodes and devices, each with an audit entry."""
    now = timezone.now()
    pool = Pool.objects.select_for_update().get(pk=pool.pk)
    existing = {node.name: node for node in pool.nodes.all()}
    nodes = [(_apply_node(pool, existing.get(info.name), info, now), info) for info in inventory.nodes]
    apply_devices(pool, nodes)
    if not pool.runs_on_node:
        seen = {info.name for info in inventory.nodes}
        for name in set(existing) - seen:
            _node_offline(pool, existing[name])
    Pool.objects.filter(pk=pool.pk).update(
        capabilities=sorted(item.value for item in inventory.capabilities),
        used_by_others=dict(inventory.used_by_others),
        inventory_at=now,
    )
    _set_state(pool, PoolState.ONLINE, "")
    emit(InventoryApplied(pool))


def apply_inventory_failure(*, pool: Pool, failure: Failure) -> None:
    """Record that the driver could not take an inventory, and retry soon. Workspaces are not affected.

    A GPU reset is not an error: the last inventory stays valid until the node can take a new one.
    """
    Pool.objects.filter(pk=pool.pk).update(
        inventory_due_at=timezone.now()
        + timedelta(seconds=min(POLL_INTERVAL_S, settings.INVENTORY_INTERVAL_S))
    )
    if failure.code != GpuBeingReset.code:
        _set_state(pool, PoolState.UNREACHABLE, failure.message)


def _set_state(pool: Pool, state: PoolState, message: str) -> None:
    changed = Pool.objects.filter(pk=pool.pk).exclude(state=state, state_message=message)
    if changed.update(state=state, state_message=message):
        text = f"found {pool.name} {state.label.lower()}" + (f": {message}" if message else "")
        emit(CapacityChanged())
        events.record(actor=SYSTEM, kind=AuditKind(f"pool.{state.value}"), pool=pool, message=text)
        if state is PoolState.UNREACHABLE:
            notices.pool_unreachable(pool, message)


def _apply_node(pool: Pool, node: Node | None, info: NodeInfo, now: Any) -> Node:
    was_online = node.online if node else None
    if node is None:
        node = Node(pool=pool, name=info.name)
    before = {name: getattr(node, name) for name in PLACED_BY}
    was_disk, was_driver = node.disk_mib, node.driver_version
    node.cpu_milli = info.cpu_milli
    node.memory_mib = info.memory_mib
    node.disk_mib = info.disk_mib
    node.isolation = info.isolation.value
    node.limits = info.limits.value
    node.limited = [resource.value for resource in info.limited]
    node.programs = dict(info.programs)
    node.accelerator_note = info.accelerator_note
    node.warnings = list(info.warnings)
    node.environments = held_environments.as_rows(info.environments)
    node.provides = held_environments.provided_needs(info.provides, node.environments)
    node.labels = dict(info.labels)
    if info.driver_version or info.accelerator_state not in UNSEEN_STATES:
        # A driver that does not answer reports no version, so keep the last known one.
        node.driver_version, node.cuda_version = info.driver_version, info.cuda_version
    node.facts = dict(info.facts)
    was_state, node.accelerator_state = node.accelerator_state, info.accelerator_state
    node.online = info.online
    node.seen_at = now
    # An operator may have changed the cordon or the location since the node was read.
    node.save(update_fields=None if node._state.adding else REPORTED)
    if was_online is None:
        emit(CapacityChanged())
        events.record(
            actor=SYSTEM,
            kind=AuditKind.NODE_APPEARED,
            pool=pool,
            message=f"found the node {node.name}",
            targets=[Target(TargetKind.NODE, node.name)],
            data={"node": node.name},
        )
    elif was_online != info.online:
        state = "online" if info.online else "offline"
        emit(CapacityChanged())
        events.record(
            actor=SYSTEM,
            kind=AuditKind(f"node.{state}"),
            pool=pool,
            message=f"found {node.name} {state}",
            targets=[Target(TargetKind.NODE, node.name)],
            data={"node": node.name},
        )
        if not info.online:
            notices.node_offline(pool, node)
    if was_state and info.accelerator_state and was_state != info.accelerator_state:
        note = f": {info.accelerator_note}" if info.accelerator_note else ""
        emit(CapacityChanged())
        events.record(
            actor=SYSTEM,
            kind=AuditKind.NODE_ACCELERATORS,
            pool=pool,
            message=f"found the accelerators of {node.name} in the state {info.accelerator_state}{note}",
            targets=[Target(TargetKind.NODE, node.name)],
            data={"node": node.name, "before": was_state, "now": info.accelerator_state},
        )
    if was_driver and node.driver_version and was_driver != node.driver_version:
        emit(CapacityChanged())
        events.record(
            actor=SYSTEM,
            kind=AuditKind.NODE_DRIVER_CHANGED,
            pool=pool,
            message=f"found the driver {node.driver_version} on {node.name}, previously {was_driver}",
            targets=[Target(TargetKind.NODE, node.name)],
            data={"node": node.name, "before": was_driver, "now": node.driver_version},
        )
    changed = [name for name in PLACED_BY if getattr(node, name) != before[name]]
    if abs(node.disk_mib - was_disk) * DISK_CHANGED > max(was_disk, node.disk_mib):
        changed.append("disk_mib")
    if changed and was_online is not None:
        labels = ", ".join(name.removesuffix("_milli").removesuffix("_mib") for name in changed)
        emit(CapacityChanged())
        events.record(
            actor=SYSTEM,
            kind=AuditKind.NODE_CHANGED,
            pool=pool,
            message=f"found changes of {node.name}: {labels}",
            targets=[Target(TargetKind.NODE, node.name)],
            data={"node": node.name, "changed": changed},
        )
    return node


def _node_offline(pool: Pool, node: Node) -> None:
    if Node.objects.filter(pk=node.pk, online=True).update(online=False):
        emit(CapacityChanged())
        events.record(
            actor=SYSTEM,
            kind=AuditKind.NODE_OFFLINE,
            pool=pool,
            message=f"no longer found {node.name}",
            targets=[Target(TargetKind.NODE, node.name)],
            data={"node": node.name},
        )
        notices.node_offline(pool, node)


def expect_node(
    *, actor: User | SystemActor, pool: Pool, name: str, location: Mapping[str, str] | None = None
) -> Node:
    """Create or reset the node of a machine that has joined.

    The node is offline until its first inventory, which is due at once.

    A `location` (see `locations`) replaces an earlier one. Requires a transaction. Raises `InvalidInput`.
    """
    require_operator(actor)
    node, created = Node.objects.get_or_create(pool=pool, name=name)
    if not created:
        node.retired, node.online, node.cordoned, node.cordon_reason = False, False, False, ""
        node.save(update_fields=["retired", "online", "cordoned", "cordon_reason"])
    if location:
        node = locations.set_location(actor=actor, node_id=node.pk, labels=location)
    Pool.objects.filter(pk=pool.pk).update(inventory_due_at=timezone.now())
    emit(CapacityChanged())
    return node


def retire_node(*, actor: User | SystemActor, pool: Pool, name: str, reason: str) -> None:
    """Retire the node of a machine that is gone. It gets no commands, and its messages are ignored.

    Requires a transaction. Allocations stay until the absence of their workspaces is confirmed.
    """
    require_operator(actor)
    node = Node.objects.select_for_update().filter(pool=pool, name=name).first()
    if node is None:
        return
    _node_offline(pool, node)
    node.retired, node.online, node.cordoned, node.cordon_reason = True, False, True, reason
    node.save(update_fields=["retired", "online", "cordoned", "cordon_reason"])
    Device.objects.filter(node=node).update(present=False)
    emit(CapacityChanged())


def forget_node(*, actor: User | SystemActor, pool: Pool, name: str) -> None:
    """Delete a retired node, unless other rows refer to it, such as allocations or checks.

    Requires a transaction.
    """
    require_operator(actor)
    node = Node.objects.filter(pool=pool, name=name, retired=True).first()
    if node is None:
        return
    emit(NodeForgotten(node.pk))
    with suppress(ProtectedError):
        node.delete()
    emit(CapacityChanged())


@transaction.atomic
def set_cordon(*, actor: User | SystemActor, node_id: UUID, cordoned: bool, reason: str = "") -> Node:
    """Cordon or uncordon a node. Running workspaces continue. Idempotent. Raises `NotFound`, `NotAllowed`."""
    require_operator(actor)
    reason = strip_nul(reason)
    node = Node.objects.select_for_update(of=("self",)).select_related("pool").filter(pk=node_id).first()
    if node is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_NODE))
    if node.cordoned != cordoned:
        node.cordoned = cordoned
        node.cordon_reason = reason if cordoned else ""
        node.save(update_fields=["cordoned", "cordon_reason"])
        action = "cordoned" if cordoned else "uncordoned"
        emit(NodesChanged((node.pk,)))
        events.record(
            actor=actor,
            kind=AuditKind(f"node.{action}"),
            pool=node.pool,
            message=f"{action} {node.name}" + (f": {reason}" if reason else ""),
            targets=[Target(TargetKind.NODE, node.name)],
            data={"node": node.name},
        )
        if not cordoned:
            emit(NodeUncordoned(node.pk))
            emit(CapacityFreed())
    return node
