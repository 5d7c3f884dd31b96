"""Operations for operators: create join tokens, and revoke or remove machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.common.actors import SystemActor
from portal.common.errors import NotFound, StateConflict, Unavailable
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Node, PlacementLock, Pool
from portal.fleet.machines import joining, redis_users, tokens
from portal.fleet.machines.codes import MachineCode
from portal.fleet.machines.models import JoinToken, Machine, MachineState
from portal.fleet.machines.removal_policy import removal_policy
from portal.fleet.machines.tokens import NewJoinToken
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator

TOKEN_LASTS = timedelta(hours=1)
MAX_REASON = 200


def may_join(pool: Pool) -> Reason | None:
    """Return why machines cannot join the pool, or None if they can."""
    if not pool.runs_on_node:
        return Reason(MachineCode.POOL_TAKES_NO_MACHINES, {"pool": pool.name})
    if not settings.BERTH_NODES_ADDRESS:
        return Reason(MachineCode.NODES_ADDRESS_MISSING)
    return None


def make_join_token(*, actor: User | SystemActor, pool: Pool) -> NewJoinToken:
    """Create a token with which one machine can join the pool within 1 hour.

    Raises `NotAllowed`, `StateConflict` (the pool takes no machines) and `Unavailable`.
    """
    require_operator(actor)
    refused = may_join(pool)
    if refused is not None:
        raise StateConflict(refused)
    digest = joining.authority().digest
    secret = tokens.new_secret()
    with transaction.atomic():
        token = JoinToken.objects.create(
            pool=pool,
            digest=tokens.digest_of(secret),
            created_by=None if isinstance(actor, SystemActor) else actor,
            expires_at=timezone.now() + TOKEN_LASTS,
        )
        events.record(
            actor=actor,
            kind=AuditKind.MACHINE_TOKEN_CREATED,
            pool=pool,
            message=f"created a token to join {pool.name}",
            data={"token": str(token.pk)},
        )
    return NewJoinToken(token, tokens.text_of(token.pk, secret, digest))


@transaction.atomic
def revoke_join_token(*, actor: User | SystemActor, pool: Pool, token_id: UUID) -> None:
    """Revoke a join token. Raises `NotAllowed`, and `NotFound` if it is used or revoked."""
    require_operator(actor)
    token = JoinToken.objects.select_for_update().filter(pk=token_id, pool=pool, used_at=None).first()
    if token is None:
        raise NotFound(Reason(MachineCode.NO_SUCH_JOIN_TOKEN))
    events.record(
        actor=actor,
        kind=AuditKind.MACHINE_TOKEN_REVOKED,
        pool=pool,
        message=f"revoked a token to join {pool.name}",
        data={"token": str(token.pk)},
    )
    token.delete()


@transaction.atomic
def revoke(*, actor: User | SystemActor, machine_id: UUID, reason: str = "") -> Machine:
    """Revoke a machine's credentials and close its connections, even if workspaces run there. Idempotent.

    Raises `NotFound` and `NotAllowed`.
    """
    require_operator(actor)
    machine = _locked_machine(machine_id)
    reason = strip_nul(reason).strip()[:MAX_REASON]
    if machine.state == MachineState.REVOKED:
        return machine
    joining.end(machine, MachineState.REVOKED, reason=reason or "The machine was revoked.")
    _record(actor, AuditKind.MACHINE_REVOKED, machine, f"revoked {machine.name}", reason)
    return machine


def remove(
    *,
    actor: User | SystemActor,
    machine_id: UUID,
    reason: str = "",
    give_up: Callable[[Node], dict[str, Any]] | None = None,
) -> None:
    """Delete a machine that has left or was revoked. Its name can be reused.

    `give_up` ends the workspaces placed on its node, in the same transaction and under the placement lock,
    and returns data for the audit log. Without `give_up`, nothing may be placed there, and no home may exist
    only there.

    Raises `NotFound`, `NotAllowed`, `StateConflict` (still joined, or workspaces are placed there) and
    `Unavailable` if its Redis user cannot be deleted.
    """
    require_operator(actor)
    row = Machine.objects.filter(pk=machine_id).first()
    if row is not None and row.state != MachineState.ACTIVE and not redis_users.sync([row.name]):
        # After deletion of the row, nothing would remove its Redis user.
        raise Unavailable(Reason(MachineCode.USER_OF_REDIS_LEFT, {"node": row.name}))
    with transaction.atomic():
        PlacementLock.hold()
        machine = _locked_machine(machine_id)
        if machine.state == MachineState.ACTIVE:
            raise StateConflict(Reason(MachineCode.MACHINE_STILL_JOINED, {"node": machine.name}))
        node = Node.objects.filter(pool=machine.pool, name=machine.name).first()
        given_up = give_up(node) if give_up is not None and node is not None else {}
        count = joining.count_placed_workspaces(machine)
        if count:
            params = {"count": count, "node": machine.name}
            raise StateConflict(Reason(MachineCode.NODE_HAS_WORKSPACES, params))
        if give_up is None:
            removal_policy().require_removable(machine.pool_id, machine.name)
        inventory.forget_node(actor=actor, pool=machine.pool, name=machine.name)
        _record(actor, AuditKind.MACHINE_REMOVED, machine, f"removed {machine.name}", reason, given_up)
        machine.delete()


def _locked_machine(machine_id: UUID) -> Machine:
    rows = Machine.objects.select_for_update(of=("self",)).select_related("pool")
    machine = rows.filter(pk=machine_id).first()
    if machine is None:
        raise NotFound(Reason(MachineCode.NO_SUCH_MACHINE))
    return machine


def _record(
    actor: User | SystemActor,
    kind: AuditKind,
    machine: Machine,
    message: str,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    events.record(
        actor=actor,
        kind=kind,
        pool=machine.pool,
        message=message,
        reason=reason,
        targets=[Target(TargetKind.NODE, machine.name)],
        data={"node": machine.name, **(data or {})},
    )
