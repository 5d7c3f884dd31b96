"""The configuration of the gateway of a node that is another machine: Caddy, the one way into its workspaces
and out to the portal. The control plane's own machine needs none: there the front door does the same
(`portal.embedded.proxy`), and shares the parts below.

In: it takes connections over TLS from whoever shows a certificate of Berth's own authority, and requests from
the front door alone, by the name in its certificate: that of another node is refused. The header
`X-Berth-Socket` names one start of one workspace (`provisioning.endpoints`), and the connection is handed to
that start's Unix socket. There is no port that another program could hold, and a socket whose workspace has
ended refuses. The front door sets the header from what forward-auth has answered.

Out: agents reach the portal through a Unix socket, and of the portal only the paths of agents.

Caddy runs in the folder of the local driver's state, so that the paths of sockets are short: they may have
107 bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.endpoints import PORTAL_SOCKET, SOCKET_HEADER, SOCKET_NAME, host_and_port

FRONT_DOOR_NAME = "front-door.berth.internal"
"""The name in the front door's certificate."""
PORTAL_NAME = "portal.berth.internal"
"""The name in the certificate of the portal's doors for machines."""
NODE_NAME = "node.berth.internal"
"""What the names in the certificates of nodes' gateways end with."""

AGENT_PATHS = "^/agent/v1/[a-z]+$"
SECOND_NS = 10**9
HEADER_TIMEOUT_NS = 15 * SECOND_NS
IDLE_TIMEOUT_NS = 300 * SECOND_NS
# Apps close idle connections after five seconds and more (Node.js): whoever closes first must not be they.
APP_IDLE_NS = 4 * SECOND_NS
# As what is not known to be a stream is passed on at the latest.
FLUSH_NS = SECOND_NS // 10
AGENT_BODY_MAX_BYTES = 4 << 20

SERVER: dict[str, Any] = {
    "automatic_https": {"disable": True},
    "protocols": ["h1"],
    "read_header_timeout": HEADER_TIMEOUT_NS,
    # Off. Caddy 2.11.7 has them on, and then a connection whose body was not there in time is never closed.
    "read_idle_timeout": -1,
    "write_idle_timeout": -1,
    "idle_timeout": IDLE_TIMEOUT_NS,
}


def node_name(node: str) -> str:
    """The name in the certificate of a node's gateway."""
    return f"{node}.{NODE_NAME}"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority's certificate, and one's own with its key."""

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
    workspaces = {
        **SERVER,
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
                "match": [{"not": [shows(FRONT_DOOR_NAME)]}],
                "handle": [{"handler": "static_response", "status_code": 403, "close": True}],
                "terminal": True,
            },
            {
                "match": [{"header_regexp": {SOCKET_HEADER: {"name": "socket", "pattern": _SOCKET}}}],
                "handle": [{**to_socket(), "headers": {"request": {"delete": [SOCKET_HEADER]}}}],
                "terminal": True,
            },
            {"handle": [{"handler": "static_response", "status_code": 502}]},
        ],
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
    """A matcher: the client's certificate is for `name`, by its subject as well as by its DNS name."""
    return {
        "vars": {"{http.request.tls.client.subject}": [f"CN={name}"]},
        "vars_regexp": {
            "{http.request.tls.client.san.dns_names.0}": {"pattern": "^" + name.replace(".", r"\.") + "$"}
        },
    }


def transport(*, idle_ns: int, idle: int, **more: Any) -> dict[str, Any]:
    """How a server on this machine, or another one, is spoken to.

    `idle` is how many connections are kept, and `idle_ns` how long: less than the other side does.
    """
    return {
        "protocol": "http",
        "versions": ["1.1"],
        "dial_timeout": 5 * SECOND_NS,
        # Fewer, larger reads: a gigabyte comes some percent faster than with Caddy's 4 KiB.
        "read_buffer_size": 65_536,
        "keep_alive": {"max_idle_conns_per_host": idle, "idle_timeout": idle_ns},
        # What a client does not ask for is not compressed either, to be unpacked here.
        "compression": False,
        # Whatever HTTP_PROXY says.
        "network_proxy": {"from": "none"},
        **more,
    }


def client_tls(certificates: Certificates, *, server_name: str) -> dict[str, Any]:
    """TLS to a server that has to show a certificate of the authority for `server_name`."""
    return {
        "ca": {"provider": "file", "pem_files": [str(certificates.authority)]},
        "client_certificate_file": str(certificates.certificate),
        "client_certificate_key_file": str(certificates.key),
        "server_name": server_name,
    }


def to_socket(found: str = "socket") -> dict[str, Any]:
    """A handler: to the Unix socket whose name and generation are the first groups of the matcher `found`."""
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"unix/{{http.regexp.{found}.1}}/app.{{http.regexp.{found}.2}}.sock"}],
        "transport": transport(idle_ns=APP_IDLE_NS, idle=64),
        "flush_interval": FLUSH_NS,
    }


def agents_server(portal_url: str, *, tls: dict[str, Any]) -> dict[str, Any]:
    """The socket by which agents reach the portal: their paths and nothing else.

    `tls` is for an https URL. Raises `ValueError` for what is no http(s) URL of host and port.
    """
    place = host_and_port(portal_url)
    if place is None:
        raise ValueError(f"{portal_url!r} is not an http or https URL of a host and port")
    scheme, address = place
    more = {"tls": tls} if scheme == "https" else {}
    to_portal = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": address}],
        "transport": transport(idle_ns=60 * SECOND_NS, idle=16, **more),
        "headers": {"request": {"set": {"Host": ["{http.reverse_proxy.upstream.hostport}"]}}},
    }
    return {
        **SERVER,
        "listen": [f"unix/{PORTAL_SOCKET}|0666"],
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
    }


def caddy(servers: dict[str, Any], *, storage: Path, certificates: list[dict[str, Any]] | None = None) -> str:
    """Caddy's JSON for these servers: no administration, no log of requests, and a quick end."""
    config: dict[str, Any] = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(storage)},
        "logging": {
            "logs": {
                "default": {
                    "level": "WARN",
                    # Requests hold what nobody shall read in a log.
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
