"""Who asks, by the front door's word: the one place where an address that a header names is believed.

Everything on this machine can reach the portal's own ports and write headers, a notebook too. So the front
door (Caddy) proves itself with a header that it sets on every request to the portal, whatever a client sent
under that name; its value comes from the gateway's secret. It adds its own peer to `X-Forwarded-For`, and
that is the client, unless that peer is one of the proxies that are trusted. One on this machine has to prove
itself as well, by the secret that it shares with the portal: from here, a notebook looks the same.

This module needs neither Django nor a library, as what starts the front door reads it too.
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
"""Leads a connection that lasts, which the gateway process watches, to its workspace."""
STREAM_HEADER = "X-Berth-Stream"
"""A word that is good once: in the answer of forward-auth, then to the gateway process."""
STREAM_PLACE_HEADER = "X-Berth-Stream-Place"
"""In the answer of forward-auth: the socket of the gateway process to which that word is brought."""
MIN_SECRET = 16
"""A shorter secret of a proxy counts as none."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def token_of(gateway_secret: str) -> str:
    """What the front door says of itself."""
    return hmac.new(gateway_secret.encode(), b"berth:front-door", hashlib.sha256).hexdigest()


def onward_token_of(gateway_secret: str) -> str:
    """What the gateway process says of itself to the front door."""
    return hmac.new(gateway_secret.encode(), b"berth:onward", hashlib.sha256).hexdigest()


def is_front_door(given: str, gateway_secret: str) -> bool:
    """Whether a request with this value of `TOKEN_HEADER` came through the front door."""
    return bool(gateway_secret) and hmac.compare_digest(
        given.encode("utf-8", "replace"), token_of(gateway_secret).encode()
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
    """The client's address: the peer's own, or by the front door's word another one.

    `token`, `forwarded_for` and `proxy_secret` are the headers' values, `gateway_secret` and
    `own_proxy_secret` what they have to be, `trusted` the proxies in front of the front door.
    """
    if not is_front_door(token, gateway_secret):
        return peer
    named = [name.strip() for name in forwarded_for.split(",")]
    client = _address(named.pop())
    if client is None:
        return peer
    proven = len(own_proxy_secret) >= MIN_SECRET and hmac.compare_digest(
        proxy_secret.encode("utf-8", "replace"), own_proxy_secret.encode()
    )
    while named and _contains(trusted, client) and (proven or not _is_of_this_machine(str(client))):
        further = _address(named.pop())
        if further is None:
            break
        client = further
    return str(client)


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _contains(trusted: tuple[Network, ...], address: Address) -> bool:
    return any(address in network for network in trusted)


@lru_cache(maxsize=256)
def _is_of_this_machine(address: str) -> bool:
    """Whether the address is one of this machine's own: a socket can be bound to it."""
    if ipaddress.ip_address(address).is_loopback:
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
