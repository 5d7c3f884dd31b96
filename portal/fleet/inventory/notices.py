"""Notifies operators about nodes, pools and devices. Repeated notifications are combined."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.events import services as events
from portal.common.reasons.wording import join_names
from portal.fleet.inventory.models import Node, Pool
from portal.people.accounts.models import User

FOLD = timedelta(minutes=15)
REFUSED_FOLD = timedelta(days=1)
MAX_NAMED = 3
"""Maximum number of nodes named in a title. Titles about more nodes name the pool."""


def node_offline(pool: Pool, node: Node) -> None:
    """Notify operators that a node went offline."""
    title = _("%(node)s of %(pool)s is offline") % {"node": node.name, "pool": pool.name}
    body = _("Workspaces there continue when the node is back, or end if they are gone. Check the node.")
    _notify_about_pool(pool, "node.offline", title, body, f"/gpus/nodes/{node.pk}/")


def pool_unreachable(pool: Pool, message: str) -> None:
    """Notify operators that a pool's driver cannot take an inventory."""
    title = _("Pool %(pool)s is unreachable") % {"pool": pool.name}
    _notify_about_pool(pool, "pool.unreachable", title, message, f"/pools/{pool.slug}/")


def devices_out(pool: Pool, kind: str, counts: Sequence[tuple[Node, int]]) -> None:
    """Notify operators about failed (`ill`), `unseen` or missing (`disappeared`) devices, by node."""
    if not counts:
        return
    count = sum(number for _node, number in counts)
    nodes = join_names([node.name for node, _count in counts[:MAX_NAMED]])
    where = nodes if len(counts) <= MAX_NAMED else pool.name
    title = ngettext(
        "%(count)d GPU of %(where)s is out of service",
        "%(count)d GPUs of %(where)s are out of service",
        count,
    ) % {"count": count, "where": where}
    body = {
        "ill": _("The driver reports a fault."),
        "unseen": _("The driver does not respond for these GPUs."),
        "disappeared": _("The GPUs are no longer detected."),
    }[kind]
    url = f"/gpus/nodes/{counts[0][0].pk}/" if len(counts) == 1 else f"/pools/{pool.slug}/"
    _notify_about_pool(pool, f"device.{kind}", title, body, url)


def memory_full(pool: Pool, node: Node) -> None:
    """Notify operators that a node ran out of memory and killed a workspace within its own limit."""
    title = _("%(node)s of %(pool)s ran out of memory") % {"node": node.name, "pool": pool.name}
    body = _(
        "The kernel ended workspaces within their memory limits. Find other programs on the "
        "node that use memory, and stop or move them."
    )
    _notify_about_pool(pool, "node.memory_full", title, body, f"/gpus/nodes/{node.pk}/")


def clock_off(node: str, off_s: float) -> None:
    """Notify operators that messages are rejected because the clock of a node is wrong."""
    title = _("The clock of %(node)s is wrong") % {"node": node}
    body = _(
        "The clock differs by %(seconds)d s from the control plane. Synchronise both. Until "
        "then nothing can start or stop there; running work continues."
    ) % {"seconds": abs(round(off_s))}
    _notify_operators("node.clock_off", title, body)


def messages_refused(claimed: str, reason: str, *, queue: str) -> None:
    """Notify operators that messages in `queue` were rejected, at most once a day."""
    if reason in {"undecodable", "unknown_task"}:
        _messages_dropped(reason, queue)
        return
    body = {
        "unsigned": _("The messages are not signed. A Redis password may be compromised."),
        "unknown_sender": _("The public key of the sender is unknown."),
        "wrong_node": _(
            "A node sent messages for another node or pool. Check that node: it may be compromised."
        ),
    }.get(reason, _("The signatures do not match the messages. A Redis password may be compromised."))
    title = _("Messages from %(sender)s were rejected") % {"sender": claimed or _("unknown")}
    _notify_operators("node.message_refused", title, body)


def _messages_dropped(reason: str, queue: str) -> None:
    if reason == "unknown_task":
        title = _("Unknown tasks in queue %(queue)s were dropped") % {"queue": queue}
        body = _("Check that the portal and all nodes run the same version of Berth.")
    else:
        title = _("Unreadable messages in queue %(queue)s were dropped") % {"queue": queue}
        body = _(
            "Berth does not send such messages. A node may be compromised, or a Redis password "
            "may have leaked. The logs of the workers count the messages."
        )
    _notify_operators("node.message_refused", title, body)


def redis_flooded(node: str, used_mib: int, limit_mib: int) -> None:
    """Notify operators that a node used up Redis's memory, is refused for a while and lost its messages."""
    title = _("%(node)s used up Redis's memory") % {"node": node}
    body = _(
        "Redis had %(used)d of %(limit)d MiB in use. Berth deleted the messages of this node and refuses it "
        "for a minute. Sessions and other nodes are not affected. If it happens again, revoke the node."
    ) % {"used": used_mib, "limit": limit_mib}
    _notify_operators("redis.flooded", title, body, fold=FOLD)


def redis_nearly_full(used_mib: int, limit_mib: int) -> None:
    """Notify operators that Redis has little memory left, and that no node is the cause."""
    title = _("Redis is nearly full")
    body = _(
        "%(used)d of %(limit)d MiB are in use. Once it is full, workspaces cannot be opened, and "
        "commands wait. Sessions are kept. Increase the memory of Redis, or find what fills it."
    ) % {"used": used_mib, "limit": limit_mib}
    _notify_operators("redis.nearly_full", title, body)


def _notify_operators(kind: str, title: str, body: str, *, fold: timedelta = REFUSED_FOLD) -> None:
    events.notify(_operators(), kind, title, body, "/pools/", fold=fold)


def _operators() -> QuerySet[User]:
    return User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)


def _notify_about_pool(pool: Pool, kind: str, title: str, body: str, url: str) -> None:
    if pool.simulated:
        title = _("Simulated: %(title)s") % {"title": title}
    events.notify(_operators(), kind, title, body, url, fold=FOLD)
