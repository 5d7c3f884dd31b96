"""Configuration of Caddy as the gateway of a node on another machine.

The gateway is the only way to the node's workspaces, and from them to the portal. On the control plane's own
machine the front door does this (`portal.embedded.proxy`), with the shared parts below.

Inbound: it accepts TLS connections with client certificates of Berth's own authority, and requests only from
the front door, by the name in its certificate. Certificates of other nodes are rejected. The header
`X-Berth-Socket` names one start of one workspace (`provisioning.endpoints`), and the connection is forwarded
to the Unix socket of that start. There is no port that another program could take over, and the socket of an
ended workspace refuses connections. The front door sets the header from the answer of forward-auth.

Outbound: agents reach the portal through a Unix socket, limited to the paths of agents.

Caddy runs in the folder of the local driver's state to keep socket paths short: they are limited to 107
bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.endpoints import (
    PORTAL_SOCKET,
    SOCKET_HEADER,
    SOCKET_NAME,
    UNAVAILABLE_HEADER,
    host_and_port,
)

FRONT_DOOR_NAME = "front-door.berth.internal"
"""Name in the front door's certificate."""
PORTAL_NAME = "portal.berth.internal"
"""Name in the certificate of the portal's endpoints for machines."""
NODE_NAME = "node.berth.internal"
"""Suffix of the names in certificates of node gateways."""

AGENT_PATHS = "^/agent/v1/[a-z]+$"
SECOND_NS = 10**9
HEADER_TIMEOUT_NS = 15 * SECOND_NS
IDLE_TIMEOUT_NS = 300 * SECOND_NS
# Apps close idle connections after 5 seconds or more (Node.js). The gateway must close them first.
APP_IDLE_NS = 4 * SECOND_NS
# Maximum delay of a response that is not known to be a stream.
FLUSH_NS = SECOND_NS // 10
# Longer than Caddy needs to end, so that its connections end with it.
STREAM_CLOSE_DELAY_NS = 60 * SECOND_NS
AGENT_BODY_MAX_BYTES = 4 << 20
AGENT_READ_TIMEOUT_NS = 30 * SECOND_NS

SERVER: dict[str, Any] = {
    "automatic_https": {"disable": True},
    "protocols": ["h1"],
    "read_header_timeout": HEADER_TIMEOUT_NS,
    # Disabled. With the default of Caddy 2.11.7, a connection whose body is late is never closed.
    "read_idle_timeout": -1,
    "write_idle_timeout": -1,
    "idle_timeout": IDLE_TIMEOUT_NS,
}

TO_APP: dict[str, Any] = {"flush_interval": FLUSH_NS, "stream_close_delay": STREAM_CLOSE_DELAY_NS}
"""Settings of each handler to an app. Without the delay, Caddy closes WebSockets with code 1001 when it ends,
and JupyterLab 4.6 does not reconnect. It does after a connection that ends without a code."""

CHUNKED: dict[str, Any] = {"header": {"Transfer-Encoding": ["*"]}}
"""Matcher of requests in chunks. Caddy drops an additional `Content-Length` before it matches."""
CLOSE_AFTER_CHUNKS: dict[str, Any] = {
    "match": [CHUNKED],
    "handle": [{"handler": "headers", "response": {"set": {"Connection": ["close"]}}}],
}
"""Route that ends the connection after such a request: what follows may be the rest of a body whose length
the client has named twice, and would be answered as a second request (RFC 9112, section 6.1)."""


def node_name(node: str) -> str:
    """Return the name in the certificate of a node's gateway."""
    return f"{node}.{NODE_NAME}"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority's certificate, and this node's certificate and key."""

    authority: Path
    certificate: Path
    key: Path


def caddy_config(
    *, listen: str, certificates: Certificates, portal_url: str, storage: Path, elsewhere: bool = False
) -> str:
    """Return Caddy's configuration as JSON.

    `listen` is `host:port`, `portal_url` an http(s) URL of host and port, `storage` a folder for Caddy
    itself. With `elsewhere` the URL is the portal's endpoint for machines on another host, to which the node
    authenticates with its certificate.
    """
    workspaces = {
        **SERVER,
        "listen": [listen],
        # The Host header is the workspace's, for the app; the TLS server name is the gateway's.
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
        # Only the front door connects, and it sets X-Forwarded-*.
        "trusted_proxies": {"source": "static", "ranges": ["0.0.0.0/0", "::/0"]},
        "routes": [
            {
                "match": [{"not": [shows(FRONT_DOOR_NAME)]}],
                "handle": [{"handler": "static_response", "status_code": 403, "close": True}],
                "terminal": True,
            },
            {
                "match": [{"header_regexp": {SOCKET_HEADER: {"name": "socket", "pattern": _SOCKET}}}],
                "handle": [{**to_socket(), "headers": {"request": {"delete": [SOCKET_HEADER]}}}],
                "terminal": True,
            },
            {"handle": [{"handler": "error", "status_code": 502}]},
        ],
        # The front door answers in its place.
        "errors": {
            "routes": [
                {
                    "handle": [
                        {
                            "handler": "static_response",
                            "status_code": "{http.error.status_code}",
                            "headers": {UNAVAILABLE_HEADER: ["1"]},
                        }
                    ]
                }
            ]
        },
    }
    tls = client_tls(certificates, server_name=PORTAL_NAME) if elsewhere else {}
    agents = agents_server(portal_url, tls=tls)
    return caddy(
        {"workspaces": workspaces, "agents": agents},
        storage=storage,
        certificates=[
            {
                "certificate": str(certificates.certificate),
                "key": str(certificates.key),
                "tags": ["node"],
            }
        ],
    )


_SOCKET = f"^{SOCKET_NAME.pattern}$"


def shows(name: str) -> dict[str, Any]:
    """Return a matcher for client certificates of `name`, by subject and by DNS name."""
    return {
        "vars": {"{http.request.tls.client.subject}": [f"CN={name}"]},
        "vars_regexp": {
            "{http.request.tls.client.san.dns_names.0}": {"pattern": "^" + name.replace(".", r"\.") + "$"}
        },
    }


def transport(*, idle_ns: int, idle: int, **options: Any) -> dict[str, Any]:
    """Return the transport to an upstream server on this or another machine.

    `idle` is the number of idle connections to keep, `idle_ns` for how long: less than the upstream keeps
    them.
    """
    return {
        "protocol": "http",
        "versions": ["1.1"],
        "dial_timeout": 5 * SECOND_NS,
        # Fewer, larger reads: large downloads are a few percent faster than with Caddy's 4 KiB.
        "read_buffer_size": 65_536,
        "keep_alive": {"max_idle_conns_per_host": idle, "idle_timeout": idle_ns},
        # Otherwise Caddy would request compression and decompress here.
        "compression": False,
        # Ignore HTTP_PROXY.
        "network_proxy": {"from": "none"},
        **options,
    }


def client_tls(certificates: Certificates, *, server_name: str) -> dict[str, Any]:
    """Return the TLS settings for a server with a certificate of the authority for `server_name`."""
    return {
        "ca": {"provider": "file", "pem_files": [str(certificates.authority)]},
        "client_certificate_file": str(certificates.certificate),
        "client_certificate_key_file": str(certificates.key),
        "server_name": server_name,
    }


def to_socket(group: str = "socket") -> dict[str, Any]:
    """Return a handler to the Unix socket that is named by the groups of the matcher `group`."""
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"unix/{{http.regexp.{group}.1}}/app.{{http.regexp.{group}.2}}.sock"}],
        "transport": transport(idle_ns=APP_IDLE_NS, idle=64),
        **TO_APP,
    }


def agents_server(portal_url: str, *, tls: dict[str, Any]) -> dict[str, Any]:
    """Return the server on the Unix socket for agents, limited to their paths.

    `tls` applies to an https URL. Raises `ValueError` unless the URL is http(s) with host and port.
    """
    place = host_and_port(portal_url)
    if place is None:
        raise ValueError(f"{portal_url!r} is not an http or https URL of a host and port")
    scheme, address = place
    tls_options = {"tls": tls} if scheme == "https" else {}
    to_portal = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": address}],
        "transport": transport(idle_ns=60 * SECOND_NS, idle=16, **tls_options),
        "headers": {"request": {"set": {"Host": ["{http.reverse_proxy.upstream.hostport}"]}}},
    }
    return {
        **SERVER,
        "listen": [f"unix/{PORTAL_SOCKET}|0666"],
        "read_timeout": AGENT_READ_TIMEOUT_NS,
        "routes": [
            CLOSE_AFTER_CHUNKS,
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
    }


def caddy(servers: dict[str, Any], *, storage: Path, certificates: list[dict[str, Any]] | None = None) -> str:
    """Return Caddy's JSON for these servers: no admin API, no access log, fast shutdown."""
    config: dict[str, Any] = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(storage)},
        "logging": {
            "logs": {
                "default": {
                    "level": "WARN",
                    # Requests contain secrets that must not be logged.
                    "encoder": {
                        "format": "filter",
                        "wrap": {"format": "json"},
                        "fields": {"request": {"filter": "delete"}, "headers": {"filter": "delete"}},
                    },
                    "exclude": ["http.log.error"],
                },
            }
        },
        "apps": {"http": {"grace_period": 2 * SECOND_NS, "servers": servers}},
    }
    if certificates:
        config["apps"]["tls"] = {"certificates": {"load_files": certificates}}
    return json.dumps(config, indent=2) + "\n"
