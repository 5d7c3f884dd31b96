"""Policy on addresses that user-supplied URLs may connect to. Independent of Django.

A name is resolved once, and the connection uses the checked address. This prevents DNS rebinding.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SITE_LOCAL = ipaddress.ip_network("fec0::/10")


class Refusal(StrEnum):
    """Why a connection is refused."""

    INTERNAL = "internal"
    """The name resolves to an internal address or not at all. One code for both prevents probing."""
    PLAIN = "plain"
    """No TLS, to an address outside of the networks that the site allows."""


class AddressRefused(OSError):
    """The policy forbids connecting to the address."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"refused: {refusal.value}")
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Reachable addresses besides the public internet. `allowed` has networks such as `10.1.0.0/16`."""

    allowed: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, networks: Iterable[str]) -> AddressPolicy:
        """Parse networks. Raises `ValueError` for invalid text."""
        return cls(tuple(ipaddress.ip_network(text.strip()) for text in networks))

    def is_allowed(self, address: Address) -> bool:
        """Return whether the address is in an allowed network."""
        return any(
            meaning.version == network.version and meaning in network
            for meaning in _embedded_addresses(address)[-1:]
            for network in self.allowed
        )

    def check(self, address: Address, *, plain: bool = False) -> None:
        """Raise `AddressRefused` if the connection is forbidden. `plain` means without TLS."""
        if self.is_allowed(address):
            return
        if any(_is_internal(meaning) for meaning in _embedded_addresses(address)):
            raise AddressRefused(Refusal.INTERNAL)
        if plain:
            raise AddressRefused(Refusal.PLAIN)


EVERYWHERE = AddressPolicy.parse(["0.0.0.0/0", "::/0"])
"""Allows everything. Only for URLs from the site's own settings."""


def resolve(
    host: str, port: int, policy: AddressPolicy, *, timeout_s: float, plain: bool = False
) -> Sequence[tuple[socket.AddressFamily, tuple[str, int]]]:
    """Resolve a name to pairs of family and (address, port), all checked by `policy`.

    One forbidden address refuses the whole name. Raises `AddressRefused`, also for a name without addresses,
    and `TimeoutError`.
    """
    targets: list[tuple[socket.AddressFamily, tuple[str, int]]] = []
    for family, address in _resolve_in_thread(host, port, timeout_s):
        policy.check(address, plain=plain)
        targets.append((family, (str(address), port)))
    if not targets:
        raise AddressRefused(Refusal.INTERNAL)
    return list(dict.fromkeys(targets))


def connect(
    host: str, port: int, policy: AddressPolicy, *, timeout_s: float, plain: bool = False
) -> socket.socket:
    """Connect to the first checked address that answers. Raises `OSError` or `AddressRefused`."""
    problem: OSError | None = None
    for family, target in resolve(host, port, policy, timeout_s=timeout_s, plain=plain):
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.settimeout(timeout_s)
            opened.connect(target)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            opened.close()
            problem = error
        else:
            return opened
    raise problem or AddressRefused(Refusal.INTERNAL)


def _resolve_in_thread(host: str, port: int, timeout_s: float) -> list[tuple[socket.AddressFamily, Address]]:
    """Resolve in a separate thread, because `getaddrinfo` has no timeout. Raises `TimeoutError`."""
    answers: list[tuple[socket.AddressFamily, Address]] = []
    done = threading.Event()

    def ask() -> None:
        try:
            for family, _kind, _proto, _name, where in socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            ):
                # Strip the zone id (`fe80::1%eth0`), which is only meaningful on its link.
                answers.append((family, ipaddress.ip_address(str(where[0]).partition("%")[0])))
        except (OSError, ValueError):
            answers.clear()
        finally:
            done.set()

    threading.Thread(target=ask, daemon=True, name="resolve").start()
    if not done.wait(timeout_s):
        raise TimeoutError("the name was not resolved in time")
    return answers


def _embedded_addresses(address: Address) -> list[Address]:
    """Return the address and IPv4 addresses embedded in it, innermost last."""
    addresses = [address]
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is None and int(address) >> 32 == 0 and int(address) > 1:
            inner = ipaddress.IPv4Address(int(address))
        if inner is not None:
            addresses.append(inner)
    return addresses


def _is_internal(address: Address) -> bool:
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    if mapped:
        # Python counts all mapped addresses as reserved. The embedded address is checked separately.
        return False
    return (
        not address.is_global
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
        or (isinstance(address, ipaddress.IPv6Address) and address in _SITE_LOCAL)
    )
