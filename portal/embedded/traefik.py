"""The parts of Traefik's configuration that the gateway relies on: plain values for YAML or JSON.

Whoever starts Traefik writes `static_config` and `dynamic_config` to files, or merges their parts
into its own. What is missing in the forward-auth middleware is a hole: change it with its tests.
"""

from __future__ import annotations

import re
from typing import Any

# A workspace's rule has the length of its host as its priority: between these two.
FALLBACK_PRIORITY = 3
GATEWAY_PRIORITY = 1_000_000
# How long Traefik waits between two changes of its configuration; its default is two seconds.
THROTTLE = "10ms"

_UUID = "[0-9a-fA-F-]{36}"
STREAMS = (
    f"PathRegexp(`^/(workspaces/{_UUID}/)?events/$`)"
    f" || PathRegexp(`^/api/v1/workspaces/{_UUID}/events/stream/?$`)"
    f" || PathRegexp(`^/api/v1/gpu-checks/{_UUID}/stream/?$`)"
    f" || (PathRegexp(`^/api/v1/workspaces/{_UUID}/events/?$`)"
    " && HeaderRegexp(`Accept`, `text/event-stream`))"
)
"""The portal's event streams, which go to the gateway process: `portal.stream_urls` has the same."""


def http_provider(*, gateway_url: str, secret: str) -> dict[str, Any]:
    """`providers.http`: the feed of `portal.workspaces.gateway.feed`, which holds each answer back.

    The time-out has to be longer than `feed.HOLD_S`.
    """
    return {
        "endpoint": f"{gateway_url}/gateway/{secret}/routes",
        "pollInterval": "20ms",
        "pollTimeout": "60s",
    }


def static_config(*, listen: str, gateway_url: str, secret: str, dynamic_file: str) -> dict[str, Any]:
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
                # A kernel's WebSocket and a large upload are both slow on purpose.
                "transport": {
                    "respondingTimeouts": {"readTimeout": "0s", "idleTimeout": "180s"},
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


def dynamic_config(*, web_url: str, gateway_url: str, domain: str, secret: str) -> dict[str, Any]:
    """Forward-auth, the gateway's own paths, the fallback for hosts without a route, the portal, its streams.

    `web_url` is the portal's web processes', `gateway_url` that of the process of `portal.asgi`, `secret`
    the path secret of forward-auth.
    """
    hosts = f"HostRegexp(`(?i)^ws-[0-9a-f]{{32}}\\.{re.escape(domain)}\\.?$`)"
    return {
        "http": {
            "middlewares": {
                "ws-auth": {
                    "forwardAuth": {
                        "address": f"{gateway_url}/gateway/{secret}/auth",
                        "trustForwardHeader": False,
                        "authResponseHeaders": ["Authorization", "Cookie"],
                        "preserveLocationHeader": True,
                        "maxResponseBodySize": 65_536,
                    }
                }
            },
            "routers": {
                "ws-gateway": {
                    "rule": f"{hosts} && PathPrefix(`/.berth/`)",
                    "priority": GATEWAY_PRIORITY,
                    "service": "gateway",
                },
                "ws-fallback": {
                    "rule": hosts,
                    "priority": FALLBACK_PRIORITY,
                    "service": "gateway",
                },
                # A workspace's host comes first: its own paths may look like these.
                "portal-streams": {
                    "rule": STREAMS,
                    "priority": FALLBACK_PRIORITY - 1,
                    "service": "gateway",
                },
                "portal": {
                    "rule": "!PathPrefix(`/gateway/`)",
                    "priority": FALLBACK_PRIORITY - 2,
                    "service": "portal",
                },
            },
            "services": {
                "portal": {"loadBalancer": {"servers": [{"url": web_url}]}},
                "gateway": {"loadBalancer": {"servers": [{"url": gateway_url}]}},
            },
        }
    }
