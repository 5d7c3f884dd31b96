"""Finds problems that keep a pool's workspaces from starting."""

from __future__ import annotations

from django.utils import timezone

from portal.common.reasons.reason import Reason
from portal.fleet.inventory import maintenance_state, node_commands
from portal.fleet.inventory.models import Pool, PoolState
from portal.fleet.machines import services
from portal.fleet.machines.codes import MachineCode
from portal.fleet.machines.models import Machine, MachineState

WORKING = frozenset({"", "ok", "no_gpu", "no_driver"})
"""Accelerator states without a problem. A node without accelerators needs no driver."""
NAMED = 20


def missing_requirements(pool: Pool) -> list[Reason]:
    """Return why workspaces cannot start or be reached, most severe reason first. Five queries."""
    reasons = []
    if not pool.enabled:
        reasons.append(Reason(MachineCode.POOL_IS_OFF))
    elif pool.retiring:
        reasons.append(Reason(MachineCode.POOL_RETIRING))
    closed = maintenance_state.plan(timezone.now()).of(pool.pk)
    if closed is not None:
        reasons.append(Reason(MachineCode.POOL_CLOSED, {"until": closed.until.isoformat()}))
    nodes = list(pool.nodes.filter(retired=False).values_list("name", "online", "accelerator_state"))
    configured = [str(pool.config["node"])] if "node" in pool.config else []
    names = [name for name, _online, _state in nodes] or configured
    reasons += [
        Reason(MachineCode.NODE_ELSEWHERE, {"node": name, "pool": other.name})
        for name, other in list(node_commands.pools_of_nodes(pool, names).items())[:NAMED]
    ]
    if pool.inventory_at is None or pool.state != PoolState.ONLINE:
        reasons.append(Reason(MachineCode.NO_WORKER_ANSWERS))
    if not nodes:
        reasons.append(Reason(MachineCode.NO_NODE_YET))
        refused = services.may_join(pool)
        if refused is not None and refused.code is MachineCode.NODES_ADDRESS_MISSING:
            reasons.append(refused)
    elif not any(online for _name, online, _state in nodes):
        reasons.append(Reason(MachineCode.NODES_ALL_OFFLINE))
    ended = Machine.objects.filter(
        pool=pool, state=MachineState.ACTIVE, certificate_expires_at__lte=timezone.now()
    )
    reasons += [
        Reason(MachineCode.CERTIFICATE_ENDED, {"node": name})
        for name in ended.order_by("name").values_list("name", flat=True)[:NAMED]
    ]
    bad = [(name, state) for name, online, state in nodes if online and state not in WORKING]
    reasons += [
        Reason(MachineCode.ACCELERATOR_DRIVER_MISSING, {"node": name, "state": state})
        for name, state in bad[:NAMED]
    ]
    return reasons
