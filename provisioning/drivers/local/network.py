"""The network of a workspace: a namespace of its own, rules about what it may reach, and a way out.

The namespace is the sandbox's (`bwrap --unshare-net`), so nothing outside reaches what listens in it, and
nothing in it reaches what listens on this machine's loopback. The way in is a Unix socket
(`provisioning.node_gateway`). The way out is pasta, a process of this user on the outside; the rules are
nftables', in the namespace, owned by a user namespace that no process of the sandbox is in.

Where hosts are allowed by name, a proxy on the outside (`provisioning/egress_proxy.py`) listens on the
namespace's loopback; where nothing else is allowed, it is the only way out, and no name is resolved inside.

Both are found by their argument vector, which names the workspace's folder.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning import proxy_inside
from provisioning.drivers.local import processes
from provisioning.egress_rules import CLOSED, Egress, Network, Policy
from provisioning.errors import StartFailed

JOIN = Path(__file__).resolve().with_name("join_network.py")
JOIN_TIMEOUT_S = 10.0
PROXY_PORT = 808
"""Where a workspace finds the proxy to names; below 1024, so nothing in it can listen there."""
BUBBLEWRAP = "bwrap"
RESOLVER = "169.254.53.53"
"""Where a workspace asks for names; pasta asks this machine's resolver instead."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs that make a network of its own."""

    pasta: str
    nft: str


def tools() -> Tools | str:
    """The programs, or the sentence that says what is missing."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    pasta, nft = shutil.which("pasta", path=search), shutil.which("nft", path=search)
    missing = [package for package, found in (("passt", pasta), ("nftables", nft)) if not found]
    if missing or not pasta or not nft:
        plural = "s" if len(missing) > 1 else ""
        return (
            "Workspaces share this machine's network: install the "
            f"package{plural} {' and '.join(f'“{name}”' for name in missing)}."
        )
    return Tools(pasta, nft)


def rules(policy: Policy, here: Iterable[str] = ()) -> str:
    """The namespace's rules as nftables reads them. `here` are addresses of this machine."""
    lines = ["oifname lo accept"]
    if policy.routed:
        lines += ["icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } accept"]
        lines += [f"ip daddr {RESOLVER} udp dport 53 accept", f"ip daddr {RESOLVER} tcp dport 53 accept"]
        closed = [ipaddress.ip_network(one) for one in (*CLOSED, *here)]
        # This machine stays closed whatever is allowed.
        lines += _each([ipaddress.ip_network(one) for one in here], "reject")
        lines += _each(policy.allowed, "accept")
        if policy.egress is Egress.OPEN:
            lines += [*_each(closed, "reject"), "accept"]
    lines += ["reject"]
    chain = "\n".join(f"        {line}" for line in lines)
    return (
        "table inet berth {\n    chain out {\n"
        f"        type filter hook output priority 0; policy drop;\n{chain}\n    }}\n}}\n"
    )


def _each(networks: Iterable[Network], verdict: str) -> list[str]:
    return [f"ip{'6' if one.version == 6 else ''} daddr {one} {verdict}" for one in networks]


def addresses_here() -> list[str]:
    """All addresses of this machine that are not loopback."""
    found: list[str] = []
    try:
        local = re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", Path("/proc/net/fib_trie").read_text())
        found += [address for address in local if not address.startswith("127.")]
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            address = ipaddress.IPv6Address(int(line.split()[0], 16))
            if not address.is_loopback and not address.is_link_local:
                found.append(str(address))
    except OSError:
        pass  # without IPv6 there is no such file
    return list(dict.fromkeys(found))


def resolv_conf(system: str) -> str:
    """The sandbox's /etc/resolv.conf: this machine's search domains and options, and `RESOLVER`."""
    kept = [line for line in system.splitlines() if line.startswith(("search ", "options ", "domain "))]
    return "\n".join((f"nameserver {RESOLVER}", *kept, ""))


def join(tools: Tools, init: int, folder: Path, policy: Policy) -> None:
    """Give the sandbox whose first process is `init` its rules and its way out. Raises `StartFailed`.

    Repeating it is safe: rules are replaced, and a way out that is there stays.
    """
    ticks = processes.start_ticks(init)
    pasta_there, proxy_there = _kinds(folder)
    uid = processes.user_of(init)
    another = uid if uid != os.geteuid() else None
    plan = {
        "pid": init,
        "start_ticks": ticks,
        "uid": another,
        "program": tools.pasta,
        "nft": tools.nft,
        # As one transaction: no moment without rules.
        "rules": "table inet berth\ndelete table inet berth\n" + rules(policy, addresses_here()),
        "way_out": _pasta(tools.pasta, folder, another) if policy.routed and not pasta_there else [],
    }
    _run([str(JOIN)], plan)
    if policy.proxied and not proxy_there:
        plan = {
            "pid": init,
            "start_ticks": ticks,
            "uid": another,
            "port": PROXY_PORT,
            "log": str(folder / "proxy.log"),
            "hosts": [str(rule) for rule in policy.hosts],
            "networks": [str(network) for network in policy.allowed],
        }
        _run([proxy_inside.__file__, str(_proxy(folder))], plan)


def _run(script: Sequence[str], plan: Mapping[str, Any]) -> None:
    """Raises `StartFailed` where the script does not succeed."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", *script],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            timeout=JOIN_TIMEOUT_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(str(error)) from error
    if done.returncode:
        raise _failed(done.stderr.strip()[-1000:])


def _failed(detail: str) -> StartFailed:
    return StartFailed(
        "The workspace's network could not be made. Try again; if it stays so, look at its node.",
        detail=detail,
    )


def _pasta(program: str, folder: Path, another: int | None) -> list[str]:
    """pasta with a way out for connections that begin inside, and for nothing else.

    `another`: the user that it runs as, where that is not this one. Nothing can be written for it then, so
    the workspace's folder is told by its own name, which has to end in “pasta”.
    """
    options = [
        "--quiet", "--config-net", "--no-map-gw", "--dns-forward", RESOLVER,
        "-t", "none", "-u", "none", "-T", "none", "-U", "none",
    ]  # fmt: skip
    if another is not None:
        return [str(_name(folder)), *options]
    log = ["--log-file", str(folder / "network.log"), "--log-size", "65536"]
    return [program, *options, *log, "--pid", str(_mark(folder))]


_MARKS = ("network.pid", "pasta", "proxy")
"""By these in a workspace's folder its ways out are found: pasta, pasta of another user, a proxy."""


def _mark(folder: Path) -> Path:
    return folder / _MARKS[0]


def _name(folder: Path) -> Path:
    return folder / _MARKS[1]


def _proxy(folder: Path) -> Path:
    return folder / _MARKS[2]


def proxy_env(policy: Policy) -> dict[str, str]:
    """The variables by which programs find the proxy to names, where there is one."""
    if not policy.proxied:
        return {}
    url, here = f"http://127.0.0.1:{PROXY_PORT}", "localhost,127.0.0.1,::1"
    found = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": here}
    return {**found, **{name.lower(): value for name, value in found.items()}}


def ways_out(folder: Path) -> list[tuple[int, int]]:
    """The processes, by PID and start, that lead out of the workspace of this folder."""
    wanted = {os.fsencode(path) for path in (_mark(folder), _name(folder), _proxy(folder))}
    return [(pid, ticks) for pid, ticks, argv in _leading_out() if wanted.intersection(argv)]


def complete(folder: Path, policy: Policy) -> bool:
    """Whether every way out that the policy has is there."""
    pasta, proxy = _kinds(folder)
    return (pasta or not policy.routed) and (proxy or not policy.proxied)


def _kinds(folder: Path) -> tuple[bool, bool]:
    """Whether the workspace of this folder has pasta, and the proxy to names."""
    pasta, proxy = {os.fsencode(_mark(folder)), os.fsencode(_name(folder))}, os.fsencode(_proxy(folder))
    argvs = [argv for _, _, argv in _leading_out()]
    return any(pasta.intersection(argv) for argv in argvs), any(proxy in argv for argv in argvs)


def end(folder: Path) -> bool:
    """End the workspace's way out; True once there is none."""
    found = ways_out(folder)
    processes.kill((), [pid for pid, _ in found])
    return not found


@dataclass(frozen=True, slots=True)
class WayOut:
    """A process that leads out of the network of a workspace or a probe, whose folder it names."""

    pid: int
    start_ticks: int
    folder: Path


def ways_out_below(base: Path) -> list[WayOut]:
    """All that name a folder below `base`, whether that is there or not."""
    found = []
    for pid, ticks, argv in _leading_out():
        marks = (Path(os.fsdecode(word)) for word in argv if word.startswith(os.fsencode(base) + b"/"))
        mark = next((each for each in marks if each.name in _MARKS), None)
        if mark is not None:
            found.append(WayOut(pid, ticks, mark.parent))
    return found


def _leading_out() -> Iterable[tuple[int, int, Sequence[bytes]]]:
    """Every pasta and proxy that this process can see, with its start and argument vector.

    What runs in a sandbox can have any name and arguments, and is none: see `_outside`.
    """
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted, and there are many
        if not entry.isdigit():
            continue
        try:
            name = Path("/proc", entry, "comm").read_text()
            pasta = name.startswith(("pasta", "passt"))
            if not (pasta or name.startswith("python")) or not _outside(int(entry), pasta=pasta):
                continue
            argv = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ticks = processes.start_ticks(int(entry))
        if ticks is not None:
            yield int(entry), ticks, argv


def _outside(pid: int, *, pasta: bool) -> bool:
    """Whether the process runs outside of every sandbox, as those do that lead out of them.

    A proxy is in this PID namespace, where no tenant is. pasta makes itself one below, of which it is the
    first process. So is the first process of a sandbox, which stays the child of bubblewrap; what a tenant
    starts or nests in there is no first process of that depth.
    """
    numbers = processes.numbers_of(pid)
    if len(numbers) == 1:
        return True
    if not pasta or len(numbers) != 2 or numbers[-1] != 1:
        return False
    parent = processes.parent_of(pid)
    return parent is not None and not processes.name_of(parent).startswith(BUBBLEWRAP)
