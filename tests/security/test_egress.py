"""Attacks from a workspace with an egress list, with the real sandbox and proxy.

Request parsing, name resolution and connections of the proxy are attacked in
`tests/provisioning/test_egress_proxy.py`.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.drivers.local import network, processes
from provisioning.drivers.local.isolation import probe
from provisioning.egress_rules import Egress, EgressPolicy, names_host, policy_of, reachable, tightest
from provisioning.node.local_settings import apply_local_settings
from provisioning.types import EgressLimit, Observation, ObservedState, PoolConfig, WorkspaceSpec
from tests.instance import eventually
from tests.provisioning.local.local_support import Pool, ask

CLOSED = ("ConnectionRefusedError", "OSError", "TimeoutError", "gaierror")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    if probe().network is None:
        pytest.skip(probe().warning)
    made = Pool(tmp_path, egress="list", egress_allow="good.example, *.good.example")
    yield made
    made.close()
    assert network.egress_processes(tmp_path / "berth" / "local") == []


def says(seen: Observation, request: str) -> str:
    """Return the first line of the proxy's answer to a request from inside."""
    data = (request + "\r\n\r\n").encode()
    call = (
        f"(lambda s: (s.sendall({data!r}), s.recv(4096).decode().split('\\r\\n')[0])[1])"
        f"(__import__('socket').create_connection(('127.0.0.1', {network.PROXY_PORT}), 10))"
    )
    return str(ask(seen, call))


def connects(seen: Observation, address: str, port: int) -> str:
    call = f"__import__('socket').create_connection(({address!r}, {port}), 2).close() or 'connected'"
    return str(ask(seen, call))


def proxy_of(pool: Pool, spec: WorkspaceSpec) -> int:
    ((pid, _),) = network.egress_processes(pool.driver._dir(spec.ref).path)
    return pid


def test_only_the_proxy_reaches_the_network(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    for address in ("203.0.113.9", "192.0.2.77", "169.254.169.254", network.RESOLVER, "2001:db8::1"):
        assert connects(seen, address, 443) in CLOSED, address
    assert connects(seen, network.RESOLVER, 53) in CLOSED
    lookup = "__import__('socket').getaddrinfo('good.example', 443)"
    assert ask(seen, lookup) == "gaierror"
    datagram = "__import__('socket').socket(2, 2).sendto(b'x', ('203.0.113.9', 53))"
    assert ask(seen, datagram) in (*CLOSED, "PermissionError")


def test_programs_get_the_proxy_address(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    url = f"http://127.0.0.1:{network.PROXY_PORT}"
    for name in ("HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        assert ask(seen, f"os.environ[{name!r}]") == url


ELSEWHERE = [
    "bad.example:443", "good.example:22", "good.example.bad.example:443",
    "169.254.169.254:80", "127.0.0.1:6379", "[::1]:6379", "localhost:8000", "10.0.0.1:443",
    "203.0.113.9:443", "[::ffff:127.0.0.1]:443", "2130706433:443",
]  # fmt: skip


def test_proxy_reaches_listed_hosts_only(pool: Pool, subtests: pytest.Subtests) -> None:
    seen = pool.run(pool.spec())
    for target in ELSEWHERE:
        with subtests.test(target):
            assert " 403 " in says(seen, f"CONNECT {target} HTTP/1.1")
            assert " 403 " in says(seen, f"GET http://{target}/ HTTP/1.1\r\nHost: good.example")


def test_proxy_does_not_reach_this_machine_or_the_portal(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        for address in ("127.0.0.1", *network.addresses_here()):
            shown = f"[{address}]" if ":" in address else address
            assert " 403 " in says(seen, f"CONNECT {shown}:{port} HTTP/1.1"), address


def test_proxy_of_another_workspace_is_unreachable_and_cannot_be_faked(pool: Pool) -> None:
    wide = pool.run(pool.spec())
    none = pool.run(pool.spec(egress=(EgressLimit("none"),)))
    assert " 403 " in says(wide, "CONNECT bad.example:443 HTTP/1.1")
    assert connects(none, "127.0.0.1", network.PROXY_PORT) in CLOSED
    bind = f"__import__('socket').socket().bind(('127.0.0.1', {network.PROXY_PORT}))"
    assert ask(none, bind) == "PermissionError"
    again = f"__import__('socket').socket().bind(('0.0.0.0', {network.PROXY_PORT}))"
    assert ask(wide, again) in ("PermissionError", "OSError")


def test_killed_proxy_is_restarted_and_proxy_of_an_ended_workspace_ends(pool: Pool) -> None:
    spec = pool.spec()
    seen = pool.run(spec)
    os.kill(proxy_of(pool, spec), signal.SIGKILL)
    folder = pool.driver._dir(spec.ref).path
    eventually(lambda: not network.egress_processes(folder) or None, limit_s=20, what="the proxy ends")
    pool.driver.warm_up(owner=os.getpid())
    assert " 403 " in says(seen, "CONNECT bad.example:443 HTTP/1.1")
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED)
    assert network.egress_processes(folder) == []


def test_proxy_runs_as_the_user_of_its_workspace(pool: Pool) -> None:
    if probe().uids is None:
        pytest.skip("workspaces have no users of their own here")
    spec = pool.spec()
    pool.run(spec)
    pid = proxy_of(pool, spec)
    eventually(lambda: processes.user_of(pid) not in (0, None) or None, limit_s=20, what="it has begun")


# --- intersection of limits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (("open", ""), ("open", ""), ("open", "")),
        (
            ("open", ""),
            ("list", "packages.example 203.0.113.0/24"),
            ("list", "203.0.113.0/24,packages.example"),
        ),
        (("open", ""), ("list", "10.0.0.0/8"), ("list", "")),
        (("open", "10.0.0.0/8"), ("list", "10.1.0.0/16"), ("list", "10.1.0.0/16")),
        (("open", "10.0.0.0/8"), ("open", "10.1.0.0/16"), ("open", "10.1.0.0/16")),
        (("open", "10.0.0.0/8"), ("open", ""), ("open", "")),
        (("list", "10.0.0.0/8"), ("list", "10.1.0.0/16 192.168.0.0/16"), ("list", "10.1.0.0/16")),
        (("list", "*.a.org"), ("list", "x.a.org b.org"), ("list", "x.a.org")),
        (("list", "*.a.org"), ("list", "*.b.a.org a.org"), ("list", "*.b.a.org")),
        (("list", "a.org:443"), ("list", "a.org"), ("list", "a.org:443")),
        (("list", "a.org"), ("list", "a.org:22"), ("list", "")),
        (("list", "a.org"), ("list", "203.0.113.0/24"), ("list", "")),
        (("none", "10.0.0.0/8"), ("open", "10.0.0.0/8"), ("none", "")),
        (("list", ""), ("open", "10.0.0.0/8"), ("list", "")),
    ],
)
def test_egress_limits_are_intersected(
    one: tuple[str, str], other: tuple[str, str], both: tuple[str, str]
) -> None:
    for first, second in ((one, other), (other, one)):
        found = tightest(policy_of(*first), policy_of(*second))
        assert (found.egress, found.as_text()) == (Egress(both[0]), both[1])


def test_intersection_never_allows_more_than_either_limit() -> None:
    words = [
        "",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "203.0.113.0/24",
        "a.org",
        "*.a.org",
        "x.a.org:443",
        "b.org 10.1.2.0/24",
    ]
    policies = [policy_of(kind, allowed) for kind in ("open", "list", "none") for allowed in words]
    addresses = [
        ipaddress.ip_network(one) for one in ("10.1.2.3", "10.9.9.9", "203.0.113.1", "8.8.8.8", "192.168.1.1")
    ]
    hosts = [
        policy_of("list", one).hosts[0] for one in ("a.org:443", "x.a.org:443", "b.org:443", "c.org:443")
    ]
    for one in policies:
        for other in policies:
            both = tightest(one, other)
            for address in addresses:
                if reachable(address, both):
                    assert reachable(address, one) and reachable(address, other), (one, other)
            for host in hosts:
                if names_host(host, both):
                    assert names_host(host, one) and names_host(host, other), (one, other, host)


def test_template_or_team_cannot_weaken_egress_of_its_pool(pool: Pool) -> None:
    for limit in (
        EgressLimit("open"),
        EgressLimit("list", "bad.example,10.0.0.0/8"),
        EgressLimit("open", "10.0.0.0/8"),
    ):
        policy = pool.driver._egress_policy(pool.spec(egress=(limit,)))
        assert policy.egress is Egress.LIST and set(map(str, policy.hosts)) <= {
            "good.example",
            "*.good.example",
        }
        assert policy.allowed == ()


def test_digest_depends_on_egress(pool: Pool) -> None:
    spec = pool.spec()
    digests = {
        replace(spec, egress=limits).digest()
        for limits in ((), (EgressLimit("none"),), (EgressLimit("list", "a.org"),))
    }
    assert len(digests) == 3


def test_pool_can_list_hosts_unless_the_node_forbids_it() -> None:
    asked = PoolConfig("p", "local", {"egress": "list", "egress_allow": "packages.example"})
    taken = apply_local_settings(asked, {"BERTH_EGRESS": "open"}).config
    assert (taken["egress"], taken["egress_allow"]) == ("list", "packages.example")
    taken = apply_local_settings(
        asked, {"BERTH_EGRESS": "list", "BERTH_EGRESS_ALLOW": "packages.example *.a.org"}
    ).config
    assert taken["egress_allow"] == "packages.example"
    with pytest.raises(Exception, match=r"has packages\.example, which this node does not allow"):
        apply_local_settings(asked, {"BERTH_EGRESS": "list", "BERTH_EGRESS_ALLOW": "*.a.org"})


def test_no_proxy_without_host_names() -> None:
    assert network.proxy_env(EgressPolicy()) == {} == network.proxy_env(policy_of("list", "10.0.0.0/8"))
    assert not policy_of("none", "a.org").proxied and not policy_of("open", "a.org").proxied
