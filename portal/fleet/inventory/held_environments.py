"""Software environments on nodes, from their inventories. Requests need environments by digest."""

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
"""Prefix of the need for an environment. The digest follows."""


def environment_need(digest: str) -> str:
    """Return the need for an environment."""
    return f"{NEED}{digest}"


def digests_in(needs: Iterable[str]) -> list[str]:
    """Return the digests of the environments that a request needs."""
    return [need.removeprefix(NEED) for need in needs if need.startswith(NEED)]


def as_rows(environments: Iterable[HeldEnvironment]) -> list[dict[str, Any]]:
    """Return the environments in the form stored in the node's row, by digest."""
    rows: dict[str, dict[str, Any]] = {}
    for environment in environments:
        row = {
            "digest": environment.digest,
            "size_mib": environment.size_mib,
            "programs": sorted(environment.programs),
        }
        if environment.folder:
            row |= {
                "folder": strip_nul(environment.folder),
                "python": strip_nul(environment.python),
                "package_count": environment.package_count,
                "fingerprint": strip_nul(environment.fingerprint),
            }
        rows[environment.digest] = row
    return [rows[digest] for digest in sorted(rows)]


def provided_needs(needs: Iterable[str], rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return everything that a node provides: its own features and its environments."""
    own = {need for need in needs if not need.startswith(NEED)}
    return sorted(own | {environment_need(row["digest"]) for row in rows})


@transaction.atomic
def add(node_id: UUID, environment: HeldEnvironment) -> None:
    """Record that a node has another environment, before its next inventory reports it."""
    node = Node.objects.select_for_update(no_key=True).filter(pk=node_id).first()
    if node is None or any(row.get("digest") == environment.digest for row in node.environments):
        return
    node.environments = sorted(
        [*node.environments, *as_rows([environment])], key=lambda row: str(row["digest"])
    )
    node.provides = provided_needs(node.provides, node.environments)
    node.save(update_fields=["environments", "provides"])
    emit(CapacityChanged())
    emit(CapacityFreed())
