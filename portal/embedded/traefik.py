"""The parts of Traefik's configuration that the gateway relies on: plain values for YAML or JSON.

Whoever starts Traefik writes `static_config` and `dynamic_config` to files, or merges their parts
into its own. What is missing in the forward-auth middleware is a hole: change it with its tests.
"""

from __future__ import annotations

import re
from typing import Any

from portal.common import front_door
from provisioning.endpoints import SOCKET_HEADER
from provisioning.node.gateway import NODE_NAME, Certificates

# A workspace's rule has the length of its host as its priority: between these two.
FALLBACK_PRIORITY = 3
GATEWAY_PRIORITY = 1_000_000
# How long Traefik waits between two changes of its configuration; its default is two seconds.
THROTTLE = "10ms"
READ_TIMEOUT_S = 3600
NODE_TRANSPORT = "nodes"
"""How Traefik speaks to the gateways of nodes: over TLS, with a certificate of its own."""

_UUID = "[0-9a-fA-F-]{36}"
STREAMS = (
    f"PathRegexp(`^/(workspaces/{_UUID}/)?events/$`)"
    f" || PathRegexp(`^/api/v1/workspaces/{_UUID}/events/stream/?$`)"
    f" || PathRegexp(`^/api/v1/gpu-checks/{_UUID}/stream/?$`)"
    f" || (PathRegexp(`^/api/v1/workspaces/{_UUID}/events/?$`)"
    " && HeaderRegexp(`Accept`, `text/event-stream`))"
)
"""The portal's event streams, which go to the gateway process: `portal.stream_urls` has the same."""


# Agents come by loopback, as Traefik's own questions do, never through the front door. No path of the portal
# has a slash, a backslash, a dot segment or a parameter in it that is written in another way, so that what is
# compared here is what the portal reads.
PORTAL = (
    r"!PathRegexp(`(?i)^/+(gateway|agent|nodes)(/|$)`)"
    r" && !PathRegexp(`(?i)%2f|%5c|%25|%2e|%3b|%00|;|\\\\|//|/\.\.?(/|$)`)"
)
WITH_BODY = "(!Method(`GET`) && !Method(`HEAD`)) || HeaderRegexp(`Content-Length`, `[1-9]`)"
MAX_BODY_BYTES = 4 * 1024 * 1024
"""More than the portal takes of anybody; the body of a workspace's request is not bounded."""
MAX_HEADER_BYTES = 64 * 1024
OWN_HEADERS = (front_door.TOKEN_HEADER, front_door.PROXY_HEADER)


def http_provider(*, gateway_url: str, secret: str) -> dict[str, Any]:
    """`providers.http`: the feed of `portal.workspaces.gateway.feed`, which holds each answer back.

    The time-out has to be longer than `feed.HOLD_S`.
    """
    return {
        "endpoint": f"{gateway_url}/gateway/{secret}/routes",
        "pollInterval": "20ms",
        "pollTimeout": "60s",
    }


def static_config(
    *, listen: str, gateway_url: str, secret: str, dynamic_file: str, read_timeout_s: int = READ_TIMEOUT_S
) -> dict[str, Any]:
    """Entry point `listen` (`host:port`), the routes, and the file of `dynamic_config` (`.yml`).

    Client-sent X-Forwarded-* headers are dropped at the entry point.
    """
    return {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "WARN"},
        "entryPoints": {
            "web": {
                "address": listen,
                "forwardedHeaders": {"insecure": False},
                "http": {"maxHeaderBytes": MAX_HEADER_BYTES},
                # Within `read_timeout_s` a request has come, its body too: a large upload is slow on purpose.
                # WebSockets and event streams, once begun, last as long as they last.
                "transport": {
                    "respondingTimeouts": {
                        "readTimeout": f"{read_timeout_s}s",
                        "writeTimeout": "0s",
                        "idleTimeout": "180s",
                    },
                    "lifeCycle": {"graceTimeOut": "2s"},
                },
            }
        },
        "providers": {
            "providersThrottleDuration": THROTTLE,
            "file": {"filename": dynamic_file, "watch": True},
            "http": http_provider(gateway_url=gateway_url, secret=secret),
        },
    }


def dynamic_config(
    *, web_url: str, gateway_url: str, domain: str, secret: str, certificates: Certificates
) -> dict[str, Any]:
    """Forward-auth, the gateway's own paths, the fallback for hosts without a route, the portal, its streams.

    `web_url` is the portal's web processes', `gateway_url` that of the process of `portal.asgi`, `secret`
    the path secret of forward-auth, `certificates` what it shows to nodes' gateways.
    """
    token = front_door.token_of(secret)
    hosts = f"HostRegexp(`(?i)^ws-[0-9a-f]{{32}}\\.{re.escape(domain)}\\.?$`)"
    return {
        "http": {
            "middlewares": {
                "ws-auth": {
                    "forwardAuth": {
                        "address": f"{gateway_url}/gateway/{secret}/auth",
                        "trustForwardHeader": False,
                        # What a client sends under these names is dropped.
                        "authResponseHeaders": ["Authorization", "Cookie", SOCKET_HEADER],
                        "preserveLocationHeader": True,
                        "maxResponseBodySize": 65_536,
                    }
                },
                # No workspace learns what proves the proxies in front, or may pass for the front door.
                "ws-strip": {"headers": {"customRequestHeaders": dict.fromkeys(OWN_HEADERS, "")}},
                "front-door": {"headers": {"customRequestHeaders": {front_door.TOKEN_HEADER: token}}},
                # A thread of the portal never waits for a body: it gets whole ones, none that is too large.
                "portal-bodies": {
                    "buffering": {
                        "maxRequestBodyBytes": MAX_BODY_BYTES,
                        "memRequestBodyBytes": 262_144,
                        "memResponseBodyBytes": 4_194_304,
                    }
                },
            },
            "routers": {
                "ws-gateway": {
                    "rule": f"{hosts} && PathPrefix(`/.berth/`)",
                    "priority": GATEWAY_PRIORITY,
                    "middlewares": ["front-door"],
                    "service": "gateway",
                },
                "ws-fallback": {
                    "rule": hosts,
                    "priority": FALLBACK_PRIORITY,
                    "middlewares": ["front-door"],
                    "service": "gateway",
                },
                # A workspace's host comes first: its own paths may look like these.
                "portal-streams": {
                    "rule": STREAMS,
                    "priority": FALLBACK_PRIORITY - 1,
                    "middlewares": ["front-door"],
                    "service": "gateway",
                },
                "portal-writes": {
                    "rule": f"{PORTAL} && ({WITH_BODY})",
                    "priority": FALLBACK_PRIORITY - 1,
                    "middlewares": ["front-door", "portal-bodies"],
                    "service": "portal",
                },
                "portal": {
                    "rule": PORTAL,
                    "priority": FALLBACK_PRIORITY - 2,
                    "middlewares": ["front-door"],
                    "service": "portal",
                },
            },
            "serversTransports": {
                NODE_TRANSPORT: {
                    "serverName": NODE_NAME,
                    "rootCAs": [str(certificates.authority)],
                    "certificates": [
                        {"certFile": str(certificates.certificate), "keyFile": str(certificates.key)}
                    ],
                    # WebSockets are upgrades of HTTP/1.1.
                    "disableHTTP2": True,
                    "maxIdleConnsPerHost": 256,
                }
            },
            "services": {
                "portal": {"loadBalancer": {"servers": [{"url": web_url}]}},
                "gateway": {"loadBalancer": {"servers": [{"url": gateway_url}]}},
            },
        }
    }
