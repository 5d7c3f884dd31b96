"""Checks that answers come from the node that got the command. Operators are notified of other answers.

Answers with an outdated lease, for example after a move, are ignored.
"""

from __future__ import annotations

from uuid import UUID

from portal.fleet.inventory import node_messages
from portal.fleet.inventory.models import Pool
from portal.workspaces import dispatch
from portal.workspaces.models import HomeArchive, HomeDeletion, HomeMove, Workspace
from provisioning.home_messages import HomeArchived, HomeMoved, MoveCommand
from provisioning.types import HomeDeleted, Result


def is_from_command_node(result: Result) -> bool:
    """Return whether the result comes from the node that got the workspace's command."""
    try:
        key = UUID(result.ref.workspace_id)
    except ValueError:
        return False
    if not result.lease:
        return False
    workspace = Workspace.objects.filter(pk=key, lease=result.lease).select_related("pool").first()
    if workspace is None or workspace.pool is None:
        return False
    node = dispatch.node_asked(workspace) if workspace.pool.runs_on_node else ""
    return node_messages.is_from_asked_node(workspace.pool, node)


def is_from_deletion_node(answer: HomeDeleted) -> bool:
    """Return whether the answer comes from the node with the home to delete."""
    if not answer.lease or not answer.deletion.isdecimal():
        return False
    rows = HomeDeletion.objects.filter(pk=int(answer.deletion), lease=answer.lease)
    deletion = rows.select_related("node__pool").first()
    return deletion is not None and node_messages.is_from_asked_node(deletion.node.pool, deletion.node.name)


def is_from_move_node(answer: HomeMoved) -> bool:
    """Return whether the answer comes from the node that got the command for this move."""
    try:
        rows = HomeMove.objects.filter(pk=UUID(answer.move), lease=answer.lease)
    except ValueError:
        return False
    move = rows.select_related("pool", "source", "target").first() if answer.lease else None
    if move is None:
        return False
    node = move.source if answer.do in (MoveCommand.OFFER, MoveCommand.REMOVE) else move.target
    return node is not None and node_messages.is_from_asked_node(move.pool, node.name)


def is_from_archive_node(answer: HomeArchived) -> bool:
    """Return whether the answer comes from the node of this archive."""
    try:
        rows = HomeArchive.objects.filter(pk=UUID(answer.archive), lease=answer.lease)
    except ValueError:
        return False
    archive = rows.select_related("pool", "node").first() if answer.lease else None
    return (
        archive is not None
        and archive.node is not None
        and node_messages.is_from_asked_node(archive.pool, archive.node.name)
    )


def is_from_listed_node(pool_slug: str, node_name: str) -> bool:
    """Return whether the current message comes from this node of the pool."""
    pool = Pool.objects.filter(slug=pool_slug, deleted_at=None).first()
    return pool is not None and node_messages.is_from_pool_node(pool, [node_name])
