"""Client addresses behind the front door (Caddy). The only module that trusts forwarded headers.

Any process on this machine, including notebooks, can reach the portal's ports and set headers. The front door
therefore authenticates itself with a header derived from the gateway secret and overwrites any value sent by
the client. It appends its peer to `X-Forwarded-For`. That peer is the client, unless it is a trusted proxy. A
proxy on this machine also has to send the secret that it shares with the portal, because it has the same
address as a notebook.

Uses only the standard library, because the launcher of the front door imports it, too.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from functools import lru_cache

TOKEN_HEADER = "X-Berth-Front-Door"  # noqa: S105  (a header's name)
PROXY_HEADER = "X-Berth-Proxy-Secret"
ONWARD_HEADER = "X-Berth-Onward"
"""Routes a long-lived connection, which the gateway process supervises, to its workspace."""
STREAM_HEADER = "X-Berth-Stream"
"""One-time token from the forward-auth response to the gateway process."""
STREAM_PLACE_HEADER = "X-Berth-Stream-Place"
"""Forward-auth response header: the gateway process's socket that accepts the one-time token."""
LARGE_BODY_PATH = "/gateway/large-body"
"""Path that the front door requests before it reads a large body, and hides from clients."""
PERMISSIONS_POLICY = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"
"""Header of the portal's own pages. Apps in workspaces may use all that their user allows."""
LIVE_PATH = "/healthz/live"
MIN_SECRET = 16
"""Minimum length of a proxy secret. A shorter one is ignored."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def token_of(gateway_secret: str) -> str:
    """Return the token with which the front door authenticates itself."""
    return hmac.new(gateway_secret.encode(), b"berth:front-door", hashlib.sha256).hexdigest()


def gateway_process_token(gateway_secret: str) -> str:
    """Return the token with which the gateway process authenticates itself to the front door."""
    return hmac.new(gateway_secret.encode(), b"berth:onward", hashlib.sha256).hexdigest()


def is_front_door(credential: str, gateway_secret: str) -> bool:
    """Return whether the value `credential` of `TOKEN_HEADER` proves that a request passed the front door."""
    return bool(gateway_secret) and hmac.compare_digest(
        credential.encode("utf-8", "replace"), token_of(gateway_secret).encode()
    )


def client_address(
    peer: str,
    *,
    token: str,
    forwarded_for: str,
    proxy_secret: str,
    gateway_secret: str,
    trusted: tuple[Network, ...],
    own_proxy_secret: str,
) -> str:
    """Return the client's address: the peer, or the forwarded address if the front door vouches for it.

    `token`, `forwarded_for` and `proxy_secret` are header values; `gateway_secret` and `own_proxy_secret` are
    the expected secrets. `trusted` are the networks of proxies in front of the front door.
    """
    if not is_front_door(token, gateway_secret):
        return peer
    addresses = [name.strip() for name in forwarded_for.split(",")]
    client = _address(addresses.pop())
    if client is None:
        return peer
    proven = len(own_proxy_secret) >= MIN_SECRET and hmac.compare_digest(
        proxy_secret.encode("utf-8", "replace"), own_proxy_secret.encode()
    )
    while addresses and _contains(trusted, client) and (proven or not _is_of_this_machine(str(client))):
        further = _address(addresses.pop())
        if further is None:
            break
        client = further
    return str(client)


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _contains(trusted: tuple[Network, ...], address: Address) -> bool:
    return any(address in network for network in trusted)


@lru_cache(maxsize=256)
def _is_of_this_machine(address: str) -> bool:
    """Return whether the address belongs to this machine, that is, a socket can bind to it."""
    if ipaddress.ip_address(address).is_loopback:
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
