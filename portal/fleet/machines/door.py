"""The nodes' door: configuration, and authentication of its requests.

The door (a separate Caddy) authenticates itself with a header derived from the gateway secret, like the front
door. The door adds the name and certificate serial of the connected node as headers, and drops these headers
from clients. Uses only the standard library.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from portal.common import front_door
from provisioning.node_gateway import SERVER

DOOR_HEADER = "X-Berth-Nodes-Door"
NODE_HEADER = "X-Berth-From-Node"
SERIAL_HEADER = "X-Berth-From-Serial"
PREFIX = "/nodes/v1/"
PUBLIC_ROUTES = {"GET": f"{PREFIX}authority", "POST": f"{PREFIX}join"}
OWN_PATHS, AGENT_PATHS = f"^{PREFIX}(rotate|leave|standing)$", "^/agent/v1/[a-z]+$"
HOME_PATHS = f"^{PREFIX}homes/(ws-[0-9a-f]{{32}})/([A-Za-z0-9_-]{{43}})$"
MAX_HOME_BODY = 1 << 20
MAX_NODE_BODY = 32 * 1024
MAX_AGENT_BODY = 4 << 20
MAX_HEADER_BYTES = 16 * 1024
NANOSECOND = 10**9


def token_of(gateway_secret: str) -> str:
    """Return the token with which the door authenticates itself."""
    return hmac.new(gateway_secret.encode(), b"berth:nodes-door", hashlib.sha256).hexdigest()


def is_door_credential(credential: str, gateway_secret: str) -> bool:
    """Return whether the value `credential` of `DOOR_HEADER` proves that a request passed the door."""
    return bool(gateway_secret) and hmac.compare_digest(
        credential.encode("utf-8", "replace"), token_of(gateway_secret).encode()
    )


def caddy_config(
    *,
    listen: str,
    authority: Path,
    certificate: Path,
    key: Path,
    web_url: str,
    gateway_secret: str,
    storage: Path,
    front: str,
    domain: str,
) -> str:
    """Return Caddy's JSON configuration for the door.

    - `listen`: path of a Unix socket, relative to Caddy's folder. `portal.embedded.door_guard` in front of it
      forwards the client's address of each connection.
    - `authority`, `certificate`, `key`: PEM files.
    - `web_url`: the portal's web processes.
    - `storage`: a folder for Caddy.
    - `front`: `host:port` of the front door, through which a node with a ticket reads a home moving to it.
    - `domain`: domain of workspaces.
    """
    subject = "{http.request.tls.client.subject}"
    own = {DOOR_HEADER: [token_of(gateway_secret)]}
    # With this header, the portal trusts the door's X-Forwarded-For, and refuses agent requests.
    proof = {front_door.TOKEN_HEADER: [front_door.token_of(gateway_secret)]}
    node = {NODE_HEADER: ["{http.regexp.node.1}"], SERIAL_HEADER: ["{http.request.tls.client.serial}"]}

    def to_portal(max_body: int, *, of_node: bool, of_agent: bool = False) -> list[dict[str, Any]]:
        headers = {**own, **({} if of_agent else proof), **(node if of_node else {})}
        request = {
            "set": {**headers, "Host": ["{http.reverse_proxy.upstream.hostport}"]},
            "delete": [
                front_door.PROXY_HEADER,
                *(name for name in (*proof, *node) if name not in headers),
            ],
        }
        return [
            {"handler": "request_body", "max_size": max_body},
            {
                "handler": "reverse_proxy",
                "upstreams": [{"dial": web_url.split("://", 1)[1]}],
                "transport": {"protocol": "http", "dial_timeout": 5 * NANOSECOND},
                "headers": {"request": request},
            },
        ]

    routes: list[dict[str, Any]] = [
        {
            "match": [{"method": [method], "path_regexp": {"pattern": f"^{path}$"}}],
            "handle": to_portal(MAX_NODE_BODY, of_node=False),
            "terminal": True,
        }
        for method, path in PUBLIC_ROUTES.items()
    ]
    for pattern, max_body in ((OWN_PATHS, MAX_NODE_BODY), (AGENT_PATHS, MAX_AGENT_BODY)):
        is_node = {subject: {"name": "node", "pattern": "^CN=node:([a-z0-9-]{1,63})$"}}
        match = {"method": ["POST"], "path_regexp": {"pattern": pattern}, "vars_regexp": is_node}
        handle = to_portal(max_body, of_node=True, of_agent=pattern == AGENT_PATHS)
        routes.append({"match": [match], "handle": handle, "terminal": True})
    home = {subject: {"name": "node", "pattern": "^CN=node:([a-z0-9-]{1,63})$"}}
    routes.append(
        {
            "match": [
                {
                    "method": ["POST"],
                    "path_regexp": {"name": "home", "pattern": HOME_PATHS},
                    "vars_regexp": home,
                }
            ],
            "handle": [
                {"handler": "request_body", "max_size": MAX_HOME_BODY},
                {"handler": "rewrite", "uri": "/.berth/files/{http.regexp.home.2}"},
                {
                    "handler": "reverse_proxy",
                    "upstreams": [{"dial": front}],
                    "transport": {"protocol": "http", "dial_timeout": 5 * NANOSECOND},
                    "headers": {"request": {"set": {"Host": ["{http.regexp.home.1}." + domain]}}},
                    "flush_interval": NANOSECOND // 10,
                },
            ],
            "terminal": True,
        }
    )
    return json.dumps(_config(routes, listen, authority, certificate, key, storage), indent=2) + "\n"


def _config(
    routes: list[dict[str, Any]], listen: str, authority: Path, certificate: Path, key: Path, storage: Path
) -> dict[str, Any]:
    server = {
        **SERVER,
        "listen": [f"unix/{listen}|0600"],
        # Access is controlled by permissions of the socket.
        "listener_wrappers": [
            {"wrapper": "proxy_protocol", "timeout": 5 * NANOSECOND},
            {"wrapper": "tls"},
        ],
        "read_timeout": 30 * NANOSECOND,
        "read_header_timeout": 10 * NANOSECOND,
        "write_timeout": 60 * NANOSECOND,
        "idle_timeout": 120 * NANOSECOND,
        "max_header_bytes": MAX_HEADER_BYTES,
        "strict_sni_host": False,
        "tls_connection_policies": [
            {
                "certificate_selection": {"any_tag": ["door"]},
                "client_authentication": {
                    "ca": {"provider": "file", "pem_files": [str(authority)]},
                    "mode": "verify_if_given",
                },
            }
        ],
        "routes": [*routes, {"handle": [{"handler": "static_response", "status_code": 404}]}],
    }
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(storage)},
        "logging": {
            "logs": {
                "default": {"level": "WARN", "encoder": {"format": "json"}, "exclude": ["http.log.error"]}
            }
        },
        "apps": {
            "http": {"servers": {"nodes": server}},
            "tls": {
                "certificates": {
                    "load_files": [{"certificate": str(certificate), "key": str(key), "tags": ["door"]}]
                }
            },
        },
    }
