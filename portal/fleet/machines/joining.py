"""Joins machines, rotates their keys and lets them leave."""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from msgspec import Meta

from portal.common.actors import SYSTEM, SystemActor
from portal.common.constraints import violates
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotAllowed, PortalError, StateConflict, Unavailable
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Allocation, Node, PlacementLock
from portal.fleet.machines import redis_rules, redis_users, tokens
from portal.fleet.machines.certificates import (
    FRONT_NAME,
    PORTAL_NAME,
    Authority,
    BadRequest,
    NoAuthority,
    SignedCertificate,
)
from portal.fleet.machines.codes import MachineCode
from portal.fleet.machines.domain_events import MachineEnded, MachineLeaving
from portal.fleet.machines.models import JoinToken, Machine, MachineState
from provisioning import location, signing
from provisioning.version import VERSION, is_compatible

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
CLOCK_MAX_OFF_S = 60.0
OVERLAP = timedelta(minutes=10)
MAX_NAMED = 200
ADDRESS = r"^([0-9A-Za-z]([0-9A-Za-z.-]*[0-9A-Za-z])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)?$"
LOCATION = rf"^({location.PATTERN})?$"


@dataclass(frozen=True, slots=True)
class NodeJoinRequest:
    """A request to join with a token.

    `clock` is the machine's unix time. An empty `address` means the peer's address. If a node joins again, an
    empty `rack` or `block` keeps the stored value.
    """

    token: Annotated[str, Meta(max_length=300)]
    name: Annotated[str, Meta(max_length=255)]
    csr: Annotated[str, Meta(max_length=8192)]
    signing_key: Annotated[str, Meta(max_length=200)]
    gateway_port: Annotated[int, Meta(ge=1, le=65535)]
    version: Annotated[str, Meta(max_length=40)]
    clock: Annotated[float, Meta(ge=0, le=1e11)]
    machine_id: Annotated[str, Meta(min_length=16, max_length=128, pattern=r"^[0-9A-Za-z-]+$")]
    instance: Annotated[str, Meta(min_length=16, max_length=128, pattern=r"^[0-9A-Za-z-]+$")]
    address: Annotated[str, Meta(max_length=253, pattern=ADDRESS)] = ""
    rack: Annotated[str, Meta(max_length=63, pattern=LOCATION)] = ""
    block: Annotated[str, Meta(max_length=63, pattern=LOCATION)] = ""


@dataclass(frozen=True, slots=True)
class Rotate:
    """A node's request for a new certificate, signing key and password."""

    csr: Annotated[str, Meta(max_length=8192)]
    signing_key: Annotated[str, Meta(max_length=200)]


@dataclass(frozen=True, slots=True)
class NodeLeaveRequest:
    """A node's request to leave. `workspaces` decides about workspaces placed there.

    - empty: the request is refused while there are workspaces;
    - `drain`: they are preempted with notice;
    - `stop`: they are stopped immediately.
    """

    workspaces: Literal["", "drain", "stop"] = ""


@dataclass(frozen=True, slots=True)
class NodeWorkspaces:
    """Workspaces on a node: their number, and the first names as `team/user/name`."""

    placed: int
    workspaces: list[str]


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """Access of a node to Redis."""

    host: str
    port: int
    user: str
    password: str
    server_name: str


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """Credentials for a machine. The password is stored nowhere else. Certificates are in PEM."""

    node: str
    pool: str
    certificate: str
    authority: str
    front_door_name: str
    redis: RedisAccess
    control_key: str
    portal_url: str
    domain: str
    expires_at: datetime


def authority() -> Authority:
    """Return the certificate authority. Raises `Unavailable`."""
    try:
        return Authority.load(settings.BERTH_TLS_DIR)
    except NoAuthority as error:
        raise Unavailable(Reason(MachineCode.NO_AUTHORITY), code=MachineCode.NO_AUTHORITY) from error


def join(*, request: NodeJoinRequest, address: str) -> NodeCredentials:
    """Join a machine by a token, from `address`. The token is used up only on success.

    Raises `PortalError` with a `MachineCode`.
    """
    signer = authority()
    password = secrets.token_hex(32)
    try:
        with transaction.atomic():
            token = _token(request.token)
            _check(request)
            signed = _sign(signer, request.csr, request.name)
            machine = _register(request, token, signed, password, address)
    except IntegrityError as error:
        if not violates(error, Machine, "name"):
            raise
        # A concurrent request has taken the name.
        raise _name_taken_error(request.name) from error
    redis_users.sync([machine.name])
    return _credentials_of(machine, signer, signed, password)


def rotate(*, node: str, serial: str, request: Rotate) -> NodeCredentials:
    """Issue a new certificate and password. The old ones stay valid for 10 minutes.

    `node` and `serial` are from the certificate of the connection. Raises `PortalError`.
    """
    signer = authority()
    password = secrets.token_hex(32)
    with transaction.atomic():
        machine = active_machine(node, serial, lock=True)
        key = _signing_key(request.signing_key, of=machine)
        signed = _sign(signer, request.csr, machine.name)
        now = timezone.now()
        machine.former_signing_key, machine.signing_key = machine.signing_key, key
        machine.former_password_digest = machine.password_digest
        machine.password_digest = tokens.digest_of(password)
        machine.former_certificate_serial = machine.certificate_serial
        machine.certificate_serial, machine.certificate_expires_at = signed.serial, signed.expires_at
        machine.former_until, machine.rotated_at = now + OVERLAP, now
        machine.save()
        _record(AuditKind.MACHINE_ROTATED, machine, "received new keys and a new certificate")
    redis_users.sync([machine.name])
    return _credentials_of(machine, signer, signed, password)


def leave(*, node: str, serial: str, request: NodeLeaveRequest) -> NodeWorkspaces | None:
    """Let a node leave. Returns its workspaces if they have to end first, else None.

    The node then takes no new work and repeats the request until it may leave. Raises `PortalError`.
    """
    with transaction.atomic():
        # Prevents placements between the check and the end of the membership.
        PlacementLock.hold()
        machine = active_machine(node, serial, lock=True)
        node_workspaces = workspaces_on(machine)
        if node_workspaces.placed and not request.workspaces:
            params = {"count": node_workspaces.placed, "node": machine.name}
            raise _error_with_code(StateConflict, MachineCode.NODE_HAS_WORKSPACES, **params)
        if node_workspaces.placed:
            emit(MachineLeaving(machine.pool_id, machine.name, stop=request.workspaces == "stop"))
            return node_workspaces
        end(machine, MachineState.LEFT, reason="The machine has left.")
        _record(AuditKind.MACHINE_LEFT, machine, "left")
    return None


def node_workspaces(*, node: str, serial: str) -> NodeWorkspaces:
    """Return the workspaces placed on an active node. Raises `PortalError` for other nodes."""
    return workspaces_on(active_machine(node, serial))


def workspaces_on(machine: Machine) -> NodeWorkspaces:
    """Return the number and names of workspaces allocated on the machine's node."""
    allocations = Allocation.objects.filter(
        node__pool=machine.pool_id, node__name=machine.name, released_at=None
    ).order_by("workspace__team__slug", "workspace__owner__username", "workspace__name")
    names = allocations.values_list("workspace__team__slug", "workspace__owner__username", "workspace__name")
    return NodeWorkspaces(count_placed_workspaces(machine), ["/".join(parts) for parts in names[:MAX_NAMED]])


def active_machine(node: str, serial: str, *, lock: bool = False) -> Machine:
    """Return the active machine whose certificate has this name and serial. Raises `NotAllowed`.

    If the certificate was replaced, a second machine may be using the name (`IDENTITY_REPLACED`).
    """
    rows = Machine.objects.select_related("pool").filter(name=node, state=MachineState.ACTIVE)
    machine = (rows.select_for_update(of=("self",)) if lock else rows).first()
    if machine is None:
        raise _error_with_code(NotAllowed, MachineCode.NOT_A_JOINED_NODE)
    if serial == machine.certificate_serial:
        return machine
    former = machine.former_until and machine.former_until > timezone.now()
    if former and serial == machine.former_certificate_serial:
        return machine
    raise _error_with_code(NotAllowed, MachineCode.IDENTITY_REPLACED, node=node)


def count_placed_workspaces(machine: Machine) -> int:
    """Return the number of workspaces allocated on the machine's node."""
    nodes = Node.objects.filter(pool_id=machine.pool_id, name=machine.name)
    return (
        nodes.filter(allocations__released_at=None, allocations__isnull=False)
        .values("allocations__workspace")
        .distinct()
        .count()
    )


def end(machine: Machine, state: MachineState, *, reason: str) -> None:
    """End a machine's membership and retire its node. Requires a transaction."""
    machine.state, machine.ended_at = state, timezone.now()
    machine.former_until = None
    machine.former_signing_key = machine.former_password_digest = machine.former_certificate_serial = ""
    machine.save()
    inventory.retire_node(actor=SYSTEM, pool=machine.pool, name=machine.name, reason=reason)
    transaction.on_commit(partial(redis_users.sync, [machine.name]))
    emit(MachineEnded(machine.pool_id, machine.name))


def _token(text: str) -> JoinToken:
    """Return the join token, locked so that only one machine can use it. Raises `PortalError`."""
    parsed = tokens.parse(text)
    token = None
    if parsed is not None:
        rows = JoinToken.objects.select_for_update(of=("self",)).select_related("pool")
        token = rows.filter(pk=parsed[0]).first()
    if parsed is None or token is None or not tokens.secret_matches(parsed[1], token):
        raise _error_with_code(NotAllowed, MachineCode.JOIN_TOKEN_UNKNOWN)
    if token.used_at is not None:
        raise _error_with_code(StateConflict, MachineCode.JOIN_TOKEN_USED)
    if token.expires_at <= timezone.now():
        raise _error_with_code(StateConflict, MachineCode.JOIN_TOKEN_EXPIRED)
    return token


def _check(request: NodeJoinRequest) -> None:
    if not NAME.fullmatch(request.name):
        raise _error_with_code(InvalidInput, MachineCode.NODE_NAME_INVALID, name=request.name[:63])
    if not is_compatible(request.version):
        raise _error_with_code(
            StateConflict, MachineCode.VERSION_DIFFERS, theirs=request.version[:20], ours=VERSION
        )
    off_s = request.clock - timezone.now().timestamp()
    if abs(off_s) > CLOCK_MAX_OFF_S:
        raise _error_with_code(StateConflict, MachineCode.CLOCK_OFF, seconds=math.ceil(abs(off_s)))
    _signing_key(request.signing_key)
    own = {settings.BERTH_NODE_NAME, *settings.BERTH_ENGINE_NODES}
    has_key = (settings.BERTH_NODE_KEYS_DIR / f"{request.name}.pub").exists()
    if request.name in own or has_key or Node.objects.filter(name=request.name, retired=False).exists():
        raise _name_taken_error(request.name)
    if Machine.objects.filter(name=request.name).exclude(state=MachineState.LEFT).exists():
        raise _name_taken_error(request.name)
    twin = Machine.objects.filter(machine_id=request.machine_id, state=MachineState.ACTIVE).first()
    if twin is not None:
        raise _error_with_code(StateConflict, MachineCode.MACHINE_JOINED_ALREADY, node=twin.name)


def _signing_key(text: str, *, of: Machine | None = None) -> str:
    """Return the key in canonical form. Raises `InvalidInput` if it is invalid or used by another machine."""
    try:
        keys = signing.public_keys(text)
    except ValueError:
        keys = ()
    if len(keys) != 1 or _is_weak(keys[0]):
        raise _error_with_code(InvalidInput, MachineCode.SIGNING_KEY_INVALID)
    public_text = keys[0].public_bytes_raw().hex()
    others = Machine.objects.exclude(pk=of.pk) if of else Machine.objects
    if others.filter(signing_key=public_text).exists() or public_text == signing.public_text(
        settings.BERTH_CONTROL_KEY
    ):
        raise _error_with_code(InvalidInput, MachineCode.SIGNING_KEY_INVALID)
    return public_text


def _is_weak(key: Ed25519PublicKey) -> bool:
    """Return whether the key is a small-order point, whose signatures can be forged."""
    return key.public_bytes_raw().hex() in _SMALL_ORDER


_SMALL_ORDER = frozenset(
    {
        "00" * 32,
        "01" + "00" * 31,
        "00" * 31 + "80",
        "01" + "00" * 30 + "80",
        "ec" + "ff" * 30 + "7f",
        "ec" + "ff" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        *(f"{low}{'ff' * 30}{high}" for low in ("ed", "ee") for high in ("7f", "ff")),
    }
)


def _sign(signer: Authority, csr: str, name: str) -> SignedCertificate:
    try:
        return signer.sign_node(csr, name)
    except BadRequest as error:
        raise _error_with_code(InvalidInput, MachineCode.CSR_INVALID, reason=str(error)) from error


def _register(
    request: NodeJoinRequest, token: JoinToken, signed: SignedCertificate, password: str, address: str
) -> Machine:
    now = timezone.now()
    # A machine that has left may join again under its name.
    machine = Machine.objects.select_for_update().filter(name=request.name, state=MachineState.LEFT).first()
    machine = machine or Machine(name=request.name)
    machine.pool, machine.state = token.pool, MachineState.ACTIVE
    machine.signing_key = _signing_key(request.signing_key)
    machine.password_digest = tokens.digest_of(password)
    machine.certificate_serial, machine.certificate_expires_at = signed.serial, signed.expires_at
    machine.gateway_host, machine.gateway_port = request.address or address, request.gateway_port
    machine.machine_id, machine.instance, machine.version = (
        request.machine_id,
        request.instance,
        request.version,
    )
    machine.clock_off_s = request.clock - now.timestamp()
    machine.boot = machine.former_boot = ""
    machine.heard_at = machine.cloned_at = machine.rotated_at = machine.ended_at = None
    machine.joined_at = now
    machine.save()
    token.used_at, token.machine = now, machine
    token.save(update_fields=["used_at", "machine"])
    where = {name: text for name, text in (("rack", request.rack), ("block", request.block)) if text}
    inventory.expect_node(actor=_actor(machine), pool=token.pool, name=machine.name, location=where)
    _record(
        AuditKind.MACHINE_JOINED,
        machine,
        f"joined {token.pool.name}",
        data={"from": address, "gateway": machine.gateway},
    )
    return machine


def _credentials_of(
    machine: Machine, signer: Authority, signed: SignedCertificate, password: str
) -> NodeCredentials:
    host = settings.BERTH_NODES_ADDRESS
    shown = f"[{host}]" if ":" in host else host
    return NodeCredentials(
        node=machine.name,
        pool=machine.pool.slug,
        certificate=signed.pem,
        authority=signer.pem,
        front_door_name=FRONT_NAME,
        redis=RedisAccess(
            host=host,
            port=settings.BERTH_NODES_PORT + 1,
            user=redis_rules.user_of(machine.name),
            password=password,
            server_name=PORTAL_NAME,
        ),
        control_key=signing.public_text(settings.BERTH_CONTROL_KEY),
        portal_url=f"https://{shown}:{settings.BERTH_NODES_PORT}",
        domain=settings.BERTH_DOMAIN,
        expires_at=signed.expires_at,
    )


def _actor(machine: Machine) -> SystemActor:
    return SystemActor(f"node {machine.name}")


def _record(kind: AuditKind, machine: Machine, message: str, **more: object) -> None:
    events.record(
        actor=_actor(machine),
        kind=kind,
        pool=machine.pool,
        message=message,
        targets=[Target(TargetKind.NODE, machine.name)],
        data={"node": machine.name, **more.get("data", {})},  # type: ignore[dict-item]
    )


def _name_taken_error(name: str) -> PortalError:
    return _error_with_code(StateConflict, MachineCode.NODE_NAME_TAKEN, name=name)


def _error_with_code(error: type[PortalError], code: MachineCode, **params: object) -> PortalError:
    """Return the error with another `code`, on which the joining machine acts."""
    return error(Reason(code, params), code=code)
