"""Tickets with which the target node of a move reads a home through the front door."""

from __future__ import annotations

import base64
from contextlib import suppress

import redis
from django.utils.crypto import salted_hmac

from portal.common.events import live
from portal.fleet.machines import selectors as machines
from portal.workspaces.gateway import file_tickets
from portal.workspaces.models import HomeMove
from provisioning.endpoints import files_socket_name


def ticket_of(move: HomeMove) -> str:
    """Return the ticket with which the target reads the home. Derived from the move, so it is not stored."""
    digest = salted_hmac("berth.home-move", f"{move.pk}:{move.offer}", algorithm="sha256").digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def name_of(move: HomeMove) -> str:
    """Return a workspace-like host name under which the front door serves the home."""
    return f"ws-{move.pk.hex}"


def publish(move: HomeMove, *, lifetime_s: int) -> bool:
    """Publish the ticket to the front door for `lifetime_s` seconds. Returns `False` if Redis is away."""
    machine = machines.machine_of_node(move.pool, move.source_name)
    transfer = file_tickets.Transfer(
        workspace=name_of(move),
        socket=files_socket_name(move.team.slug, move.owner.username),
        gateway=machine.gateway if machine is not None else "",
        node=machine.name if machine is not None else "",
    )
    try:
        file_tickets.store_home_ticket(live.connection(), ticket_of(move), transfer, lifetime_s=lifetime_s)
    except redis.RedisError:
        return False
    return True


def forget(ticket: str) -> None:
    """Revoke a ticket. If Redis is away, the ticket expires by itself."""
    with suppress(redis.RedisError):
        file_tickets.end_home(live.connection(), ticket)
