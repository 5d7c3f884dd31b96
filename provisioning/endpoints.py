"""Endpoints of workspaces as reported by drivers: an http(s) URL, or a socket on a node.

A socket endpoint is `node:ws-<id>.<generation>`. It identifies one start of one workspace, without port or
path: the gateway of the workspace's node knows where the socket is (`provisioning.node_gateway`).
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlsplit

from provisioning.types import WorkspaceRef

_SCHEME = "node:"
PORTAL_SOCKET = ".gateway/portal.sock"
"""Socket at which agents reach the portal, relative to the folder of the local driver's state."""
SOCKET_HEADER = "X-Berth-Socket"
"""Names the socket for a node's gateway. Only the front door sets it, from the answer of forward-auth."""
GATEWAY_HEADER = "X-Berth-Gateway"
"""In the answer of forward-auth: `host:port` of another node's gateway, which has the socket."""
NODE_HEADER = "X-Berth-Node"
"""In the answer of forward-auth: name of that node."""
HTTP_HEADER = "X-Berth-Http"
HTTPS_HEADER = "X-Berth-Https"
"""In the answer of forward-auth: `host:port` of a workspace without a socket."""
UNAVAILABLE_HEADER = "X-Berth-Unavailable"
"""In the answer of a node's gateway that could not reach the app. The front door then answers instead."""
PROBE_LABEL = "probe"
"""`probe.<domain>` is a host of the front door itself. A browser that reaches it can reach workspaces."""
SOCKET_NAME = re.compile(r"((?:ws|files)-[0-9a-f]{32})\.([1-9][0-9]{0,9})")
"""Name of the socket of a workspace's start, or of a home's file server."""


def socket_endpoint(ref: WorkspaceRef) -> str:
    """Return the socket endpoint of this start of the workspace."""
    return f"{_SCHEME}{ref.external_name}.{ref.generation}"


def socket_name(endpoint: str) -> str:
    """Return the `ws-<id>.<generation>` of a socket endpoint; empty for any other endpoint."""
    name = endpoint.removeprefix(_SCHEME)
    valid = endpoint.startswith(f"{_SCHEME}ws-") and SOCKET_NAME.fullmatch(name)
    return name if valid else ""


FILES_PREFIX = "files-"


def files_socket_name(team: str, owner: str) -> str:
    """Return the socket name of a home's file server."""
    digest = hashlib.sha256(f"{team}/{owner}".encode()).hexdigest()[:32]
    return f"{FILES_PREFIX}{digest}.1"


def host_and_port(endpoint: str) -> tuple[str, str] | None:
    """Return scheme and `host:port` of a bare http or https URL; None for anything else."""
    if not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        return None
    try:
        url = urlsplit(endpoint)
        port = url.port
    except ValueError:
        return None
    plain = not (url.username or url.password or url.query or url.fragment) and url.path in ("", "/")
    if not plain or url.scheme not in ("http", "https") or not url.hostname or port == 0:
        return None
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    address = f"{host}:{port or (443 if url.scheme == 'https' else 80)}"
    return (url.scheme, address) if is_address(address) else None


_ADDRESS = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]+\]):([1-9][0-9]{0,4})", re.ASCII)


def is_address(text: str) -> bool:
    """Return whether `text` is `host:port`: a name, an IPv4 address, or an IPv6 address in brackets."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and int(match[3]) < 65536
