"""Locations of nodes: rack and block, set by operators. Placement keeps multi-node requests close."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.domain_events import CapacityChanged
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator

FIELDS = ("rack", "block")


def location_text(node: Node) -> str:
    """Return the location of a node as text, such as `b1/r07`; empty if unknown."""
    return "/".join(filter(None, (node.block, node.rack)))


def document_of(node: Node) -> dict[str, str]:
    """Return the location as a JSON document, for the site file."""
    return {name: getattr(node, name) for name in FIELDS}


@transaction.atomic
def set_location(
    *,
    actor: User | SystemActor,
    node_id: UUID,
    labels: Mapping[str, str],
    expected: frozenset[str] = etags.ANY,
) -> Node:
    """Set the rack and block in `labels`; an empty value means unknown. Idempotent.

    Raises `NotAllowed`, `NotFound`, `InvalidInput` and `PreconditionFailed`.
    """
    require_operator(actor)
    rows = Node.objects.select_for_update(of=("self",)).select_related("pool")
    node = rows.filter(pk=node_id, retired=False).first()
    if node is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_NODE))
    etags.require_expected(expected, node, name=node.name)
    before = document_of(node)
    for name in FIELDS:
        setattr(node, name, labels.get(name, before[name]))
    try:
        node.clean_fields(exclude={field.name for field in Node._meta.fields} - set(FIELDS))
    except ValidationError as error:
        raise InvalidInput(Reason(InventoryCode.LOCATION_NOT_VALID), errors=error.message_dict) from error
    after = document_of(node)
    if after == before:
        return node
    node.save(update_fields=FIELDS)
    events.record(
        actor=actor,
        kind=AuditKind.NODE_LOCATED,
        pool=node.pool,
        message=f"set the location of {node.name} to {location_text(node) or 'unknown'}",
        targets=[Target(TargetKind.NODE, node.name)],
        data={"node": node.name, "before": before, "now": after},
    )
    # Snapshots order nodes by location, so they have to be read again in full.
    emit(CapacityChanged())
    return node


def node_id_of(pool: str, name: str) -> UUID:
    """Return the ID of the node `name` of the pool with this slug. Raises `NotFound`."""
    rows = Node.objects.filter(pool__slug=pool, pool__deleted_at=None, name=name, retired=False)
    key = rows.values_list("pk", flat=True).first()
    if key is None:
        raise NotFound(Reason(InventoryCode.NODE_NOT_IN_POOL, {"pool": pool, "node": name}))
    return key
