"""Egress policies of nodes, pools, teams and templates, and their intersection."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum

from provisioning.egress_proxy import HostRule, host_rule
from provisioning.errors import InvalidSpec

CLOSED = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
    "::/128", "::1/128", "64:ff9b::/96", "fc00::/7", "fe80::/10", "ff00::/8",
)  # fmt: skip
"""Blocked unless allowed: private networks, this machine, link-local (the metadata service), multicast."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Egress(StrEnum):
    """Kind of egress policy."""

    OPEN = "open"
    """Everything except `CLOSED`, this machine and its neighbours, plus what is allowed."""

    LIST = "list"
    """Only what is allowed."""

    NONE = "none"


FROM_LOOSEST = (Egress.OPEN, Egress.LIST, Egress.NONE)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """An egress policy. `allowed` opens networks that are otherwise blocked.

    `hosts` are reachable by name, through a proxy; they apply only if the policy is a list.
    """

    egress: Egress = Egress.OPEN
    allowed: tuple[Network, ...] = ()
    hosts: tuple[HostRule, ...] = ()

    @property
    def routed(self) -> bool:
        """Whether packets are routed at all; if only names are allowed, everything goes through the proxy."""
        return self.egress is Egress.OPEN or (self.egress is Egress.LIST and bool(self.allowed))

    @property
    def proxied(self) -> bool:
        """Whether a proxy connects to names."""
        return self.egress is Egress.LIST and bool(self.hosts)

    def as_text(self) -> str:
        """Return the allowed networks and hosts, in the format of `policy_of`."""
        return ",".join(map(str, (*self.allowed, *self.hosts)))


def policy_of(egress: str, allowed: str) -> EgressPolicy:
    """Parse a setting. Raises `InvalidSpec` that names the invalid part."""
    try:
        kind = Egress(egress)
    except ValueError:
        raise InvalidSpec(f"egress={egress} is not valid. Choose open, list or none.") from None
    networks: list[Network] = []
    hosts: list[HostRule] = []
    for entry in re.split(r"[\s,]+", allowed.strip()) if allowed.strip() else ():
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            try:
                hosts.append(host_rule(entry))
            except ValueError:
                raise InvalidSpec(
                    f"egress_allow has “{entry}”, which is neither a network nor a host. Write entries like "
                    "10.1.0.0/16, packages.example, *.example.org or git.example.org:22."
                ) from None
    return EgressPolicy(kind, tuple(dict.fromkeys(networks)), tuple(dict.fromkeys(hosts)))


def tightest(first: EgressPolicy, second: EgressPolicy) -> EgressPolicy:
    """Return the intersection of both policies, never more than either."""
    egress = max(first.egress, second.egress, key=FROM_LOOSEST.index)
    if egress is Egress.NONE:
        return EgressPolicy(Egress.NONE)
    networks = [
        *(network for network in first.allowed if reachable(network, second)),
        *(network for network in second.allowed if reachable(network, first)),
    ]
    hosts = [
        *(rule for rule in first.hosts if names_host(rule, second)),
        *(rule for rule in second.hosts if names_host(rule, first)),
    ]
    if egress is Egress.OPEN:
        # Both are open: a blocked network must be opened by both, and names open nothing.
        networks = [network for network in networks if _allows(network, first) and _allows(network, second)]
        hosts = []
    return EgressPolicy(egress, tuple(dict.fromkeys(networks)), tuple(dict.fromkeys(hosts)))


def no_looser(new: EgressPolicy, old: EgressPolicy) -> bool:
    """Return whether `old` allows everything that `new` allows."""
    common = tightest(new, old)
    hosts = set(new.hosts) if new.egress is Egress.LIST else set()
    return (
        common.egress is new.egress and set(new.allowed) <= set(common.allowed) and hosts <= set(common.hosts)
    )


def reachable(network: Network, policy: EgressPolicy) -> bool:
    """Return whether the policy allows the whole network."""
    if _allows(network, policy):
        return True
    if policy.egress is not Egress.OPEN:
        return False
    closed = map(ipaddress.ip_network, CLOSED)
    return not any(network.version == blocked.version and network.overlaps(blocked) for blocked in closed)


def names_host(rule: HostRule, policy: EgressPolicy) -> bool:
    """Return whether the policy allows every host of the rule by name."""
    if policy.egress is Egress.OPEN:
        return True  # names never resolve to blocked addresses
    return policy.egress is Egress.LIST and any(_covers(outer, rule) for outer in policy.hosts)


def _covers(outer: HostRule, rule: HostRule) -> bool:
    if not set(rule.ports) <= set(outer.ports):
        return False
    if outer.below:
        return rule.name.endswith(f".{outer.name}") or (rule.below and rule.name == outer.name)
    return not rule.below and rule.name == outer.name


def _allows(network: Network, policy: EgressPolicy) -> bool:
    return any(
        network.version == allowed.version and network.subnet_of(allowed)  # type: ignore[arg-type]
        for allowed in policy.allowed
    )
