"""How a driver says where a workspace answers: an http(s) address, or a socket of its node.

A socket endpoint is `node:ws-<id>.<generation>`. It names one start of one workspace and no port or path:
the gateway of the node on which the workspace is placed knows where its socket is
(`provisioning.node_gateway`).
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlsplit

from provisioning.types import WorkspaceRef

_SCHEME = "node:"
PORTAL_SOCKET = ".gateway/portal.sock"
"""Where agents reach the portal, relative to the folder of the local driver's state."""
SOCKET_HEADER = "X-Berth-Socket"
"""Names the socket to a node's gateway. Only the front door sets it, from the answer of forward-auth."""
GATEWAY_HEADER = "X-Berth-Gateway"
"""In the answer of forward-auth: `host:port` of the gateway of another node, behind which the socket is."""
NODE_HEADER = "X-Berth-Node"
"""In the answer of forward-auth: the name of that node."""
HTTP_HEADER = "X-Berth-Http"
HTTPS_HEADER = "X-Berth-Https"
"""In the answer of forward-auth: `host:port` where a workspace answers that has no socket."""
SOCKET_NAME = re.compile(r"((?:ws|files)-[0-9a-f]{32})\.([1-9][0-9]{0,9})")
"""Of a start of a workspace, or of what serves the files of a home."""


def socket_endpoint(ref: WorkspaceRef) -> str:
    """The socket endpoint of this start of the workspace."""
    return f"{_SCHEME}{ref.external_name}.{ref.generation}"


def socket_name(endpoint: str) -> str:
    """The `ws-<id>.<generation>` that a socket endpoint names; empty for any other endpoint."""
    name = endpoint.removeprefix(_SCHEME)
    good = endpoint.startswith(f"{_SCHEME}ws-") and SOCKET_NAME.fullmatch(name)
    return name if good else ""


FILES_PREFIX = "files-"


def files_socket_name(team: str, owner: str) -> str:
    """The socket of what serves the files of a home."""
    digest = hashlib.sha256(f"{team}/{owner}".encode()).hexdigest()[:32]
    return f"{FILES_PREFIX}{digest}.1"


def host_and_port(endpoint: str) -> tuple[str, str] | None:
    """Scheme and `host:port` of an http or https URL that is nothing more; None for anything else."""
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
    """Whether `text` is `host:port`: a name, an IPv4 address, or an IPv6 address in brackets."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and int(found[3]) < 65536
