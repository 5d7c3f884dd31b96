"""The software environments that nodes hold, as their inventories say; placement asks for them by digest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import transaction

from portal.common.domain_events import emit
from portal.common.texts import strip_nul
from portal.fleet.inventory.domain_events import CapacityChanged, CapacityFreed
from portal.fleet.inventory.models import Node
from provisioning.types import HeldEnvironment

NEED = "environment:"
"""How the need of a request for an environment begins; its digest follows."""


def need_of(digest: str) -> str:
    """What a request needs of a node that shall have this environment."""
    return f"{NEED}{digest}"


def digests_in(needs: Iterable[str]) -> list[str]:
    """The environments among the needs of a request."""
    return [each.removeprefix(NEED) for each in needs if each.startswith(NEED)]


def as_rows(held: Iterable[HeldEnvironment]) -> list[dict[str, Any]]:
    """As a node's row keeps them, by digest."""
    rows: dict[str, dict[str, Any]] = {}
    for each in held:
        row = {"digest": each.digest, "size_mib": each.size_mib, "programs": sorted(each.programs)}
        if each.folder:
            row |= {
                "folder": strip_nul(each.folder),
                "python": strip_nul(each.python),
                "package_count": each.package_count,
                "fingerprint": strip_nul(each.fingerprint),
            }
        rows[each.digest] = row
    return [rows[digest] for digest in sorted(rows)]


def provided(said: Iterable[str], rows: Iterable[dict[str, Any]]) -> list[str]:
    """What a node provides: what it says, and the environments that it holds."""
    own = {each for each in said if not each.startswith(NEED)}
    return sorted(own | {need_of(row["digest"]) for row in rows})


@transaction.atomic
def add(node_id: UUID, held: HeldEnvironment) -> None:
    """Take note that a node holds one more, before its next inventory says so."""
    node = Node.objects.select_for_update(no_key=True).filter(pk=node_id).first()
    if node is None or any(row.get("digest") == held.digest for row in node.environments):
        return
    node.environments = sorted([*node.environments, *as_rows([held])], key=lambda row: str(row["digest"]))
    node.provides = provided(node.provides, node.environments)
    node.save(update_fields=["environments", "provides"])
    emit(CapacityChanged())
    emit(CapacityFreed())
