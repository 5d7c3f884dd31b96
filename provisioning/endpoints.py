"""How a driver says where a workspace answers: an http(s) address, or a socket of its node.

A socket endpoint is `node:ws-<id>.<generation>`. It names one start of one workspace and no port or path:
the gateway of the node on which the workspace is placed knows where its socket is
(`provisioning.node.gateway`).
"""

from __future__ import annotations

import re

from provisioning.types import WorkspaceRef

_SCHEME = "node:"
PORTAL_SOCKET = ".gateway/portal.sock"
"""Where agents reach the portal, relative to the folder of the local driver's state."""
SOCKET_HEADER = "X-Berth-Socket"
"""Names the socket to a node's gateway. Only the front door sets it, from the answer of forward-auth."""
SOCKET_NAME = re.compile(r"(ws-[0-9a-f]{32})\.([1-9][0-9]{0,9})")


def socket_endpoint(ref: WorkspaceRef) -> str:
    """The socket endpoint of this start of the workspace."""
    return f"{_SCHEME}{ref.external_name}.{ref.generation}"


def socket_name(endpoint: str) -> str:
    """The `ws-<id>.<generation>` that a socket endpoint names; empty for any other endpoint."""
    name = endpoint.removeprefix(_SCHEME)
    return name if endpoint.startswith(_SCHEME) and SOCKET_NAME.fullmatch(name) else ""
