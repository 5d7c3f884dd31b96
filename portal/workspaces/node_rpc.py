"""Synchronous calls to a node: one task, and one sealed answer on a short-lived Redis list."""

from __future__ import annotations

import uuid
from typing import Any

import redis
from django.conf import settings

from portal.common.errors import Unavailable
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import node_commands, node_messages
from portal.fleet.inventory.models import Pool
from portal.workspaces.codes import WorkspaceCode
from provisioning.celery_config import REPLY_PREFIX

TIMEOUT_S = 4


def call(
    task: str, arguments: dict[str, Any], *, pool: Pool, node: str, about: str, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return the node's answer to `task`, which gets `arguments` and a `reply_key`.

    `about` is part of that key. Answers that the node has not sealed are ignored. Raises `Unavailable` if no
    answer arrives within `timeout_s`.
    """
    queue = node_commands.queue_of(pool, node)
    reply_key = f"{REPLY_PREFIX}{queue}:{about}:{uuid.uuid4().hex}"
    unavailable = Unavailable(Reason(WorkspaceCode.NODE_SILENT))
    if not node_commands.send(task, queue, reply_key=reply_key, **arguments):
        raise unavailable
    try:
        client = redis.Redis.from_url(
            settings.BERTH_REDIS_URL, socket_timeout=timeout_s + 2, socket_connect_timeout=1
        )
        with client:
            reply: Any = client.blpop([reply_key], timeout=timeout_s)
    except redis.RedisError as error:
        raise unavailable from error
    if reply is None:
        raise unavailable
    body = node_messages.open_reply(reply[1], key=reply_key, queue=queue)
    if body is None:
        raise unavailable
    return body
