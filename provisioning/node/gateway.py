"""The configuration of a node's gateway: Caddy, the one way into its workspaces and out to the portal.

In: it takes connections over TLS from the front door alone, whose certificate of Berth's own authority has
its name; a node's certificate opens no other node's gateway. The header `X-Berth-Socket` names one start of
one workspace (`provisioning.endpoints`), and the connection is handed to that start's Unix socket. There is
no port that another program could hold, and a socket whose workspace has ended refuses. The front door sets
the header from what forward-auth has answered.

Out: agents reach the portal through a Unix socket, and of the portal only the paths of agents.

Caddy runs in the folder of the local driver's state, so that the paths of sockets are short: they may have
107 bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.endpoints import PORTAL_SOCKET, SOCKET_HEADER, SOCKET_NAME

NODE_NAME = "node.berth.internal"
"""The name in the certificate of this machine's gateway; another's is `<name>.node.berth.internal`."""

FRONT_DOOR_NAME = "front-door.berth.internal"
PORTAL_NAME = "portal.berth.internal"
"""The name in the certificate of the portal's doors for machines."""

AGENT_PATHS = "^/agent/v1/[a-z]+$"
HEADER_TIMEOUT_NS = 15 * 10**9
IDLE_TIMEOUT_NS = 300 * 10**9
AGENT_BODY_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority's certificate, and this gateway's own with its key."""

    authority: Path
    certificate: Path
    key: Path


def caddy_config(
    *, listen: str, certificates: Certificates, portal_url: str, storage: Path, elsewhere: bool = False
) -> str:
    """Caddy's JSON.

    `listen` is `host:port`, `portal_url` an http(s) URL of host and port, `storage` a folder of its own.
    With `elsewhere` the URL is that of the portal's door for machines on another one, to which the node
    proves itself by its certificate.
    """
    pattern = SOCKET_NAME.pattern
    secure = portal_url.startswith("https://")
    as_node = {
        "ca": {"provider": "file", "pem_files": [str(certificates.authority)]},
        "client_certificate_file": str(certificates.certificate),
        "client_certificate_key_file": str(certificates.key),
        "server_name": PORTAL_NAME,
    }
    tls = as_node if elsewhere else {}
    transport: dict[str, Any] = {"protocol": "http", **({"tls": tls} if secure else {})}
    to_workspace = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": "unix/{http.regexp.socket.1}/app.{http.regexp.socket.2}.sock"}],
        "transport": {
            "protocol": "http",
            "dial_timeout": 5 * 10**9,
            "keep_alive": {"max_idle_conns_per_host": 64},
        },
        "headers": {
            "request": {"delete": [SOCKET_HEADER]},
        },
        "flush_interval": -1,
    }
    to_portal = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": portal_url.split("://", 1)[1]}],
        "transport": transport,
        "headers": {"request": {"set": {"Host": ["{http.reverse_proxy.upstream.hostport}"]}}},
    }
    server = {
        "automatic_https": {"disable": True},
        "protocols": ["h1"],
        "read_header_timeout": HEADER_TIMEOUT_NS,
        "idle_timeout": IDLE_TIMEOUT_NS,
    }
    config = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(storage)},
        "logging": {
            "logs": {
                "default": {"level": "WARN", "encoder": {"format": "json"}, "exclude": ["http.log.error"]},
            }
        },
        "apps": {
            "http": {
                "servers": {
                    "workspaces": {
                        **server,
                        "listen": [listen],
                        # The Host header is the workspace's, for the app; the name in TLS is the gateway's.
                        "strict_sni_host": False,
                        "tls_connection_policies": [
                            {
                                "certificate_selection": {"any_tag": ["node"]},
                                "client_authentication": {
                                    "ca": {"provider": "file", "pem_files": [str(certificates.authority)]},
                                    "mode": "require_and_verify",
                                },
                            }
                        ],
                        # The front door has set X-Forwarded-*; nobody else gets here.
                        "trusted_proxies": {"source": "static", "ranges": ["0.0.0.0/0", "::/0"]},
                        "routes": [
                            {
                                "match": [
                                    {
                                        "vars": {
                                            "{http.request.tls.client.san.dns_names.0}": [FRONT_DOOR_NAME]
                                        },
                                        "header_regexp": {
                                            SOCKET_HEADER: {"name": "socket", "pattern": f"^{pattern}$"}
                                        },
                                    }
                                ],
                                "handle": [to_workspace],
                                "terminal": True,
                            },
                            {"handle": [{"handler": "static_response", "status_code": 502}]},
                        ],
                    },
                    "agents": {
                        **server,
                        "listen": [f"unix/{PORTAL_SOCKET}|0600"],
                        "routes": [
                            {
                                "match": [{"method": ["POST"], "path_regexp": {"pattern": AGENT_PATHS}}],
                                "handle": [
                                    {"handler": "request_body", "max_size": AGENT_BODY_MAX_BYTES},
                                    to_portal,
                                ],
                                "terminal": True,
                            },
                            {"handle": [{"handler": "static_response", "status_code": 404}]},
                        ],
                    },
                }
            },
            "tls": {
                "certificates": {
                    "load_files": [
                        {
                            "certificate": str(certificates.certificate),
                            "key": str(certificates.key),
                            "tags": ["node"],
                        }
                    ]
                }
            },
        },
    }
    return json.dumps(config, indent=2) + "\n"
