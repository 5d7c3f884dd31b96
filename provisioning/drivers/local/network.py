"""Network of a workspace: its own namespace, egress rules and a process that connects it.

The namespace is created by the sandbox (`bwrap --unshare-net`). Nothing outside reaches its listeners, and
nothing inside reaches the loopback of this machine. Incoming connections use a Unix socket
(`provisioning.node_gateway`). Outgoing connections use pasta, a process outside the namespace. The nftables
rules are in the namespace and belong to a user namespace that no process of the sandbox is in.

If hosts are allowed by name, a proxy outside (`provisioning/egress_proxy.py`) listens on the namespace's
loopback. If only names are allowed, it is the only way out, and no name is resolved inside.

Both processes are found by their argument vector, which names the workspace's folder.
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
from provisioning.egress_rules import CLOSED, Egress, EgressPolicy, Network
from provisioning.errors import StartFailed

JOIN = Path(__file__).resolve().with_name("join_network.py")
JOIN_TIMEOUT_S = 10.0
PROXY_PORT = 808
"""Port of the egress proxy inside a workspace. Below 1024, so no process inside can bind it."""
BUBBLEWRAP = "bwrap"
RESOLVER = "169.254.53.53"
"""DNS server address inside a workspace. pasta forwards its queries to the resolver of this machine."""


@dataclass(frozen=True, slots=True)
class NetworkTools:
    """The programs that set up a network namespace."""

    pasta: str
    nft: str


def tools() -> NetworkTools | str:
    """Return the programs, or a sentence that names the missing packages."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    pasta, nft = shutil.which("pasta", path=search), shutil.which("nft", path=search)
    missing = [package for package, path in (("passt", pasta), ("nftables", nft)) if not path]
    if missing or not pasta or not nft:
        plural = "s" if len(missing) > 1 else ""
        return (
            "Workspaces share this machine's network. Install the "
            f"package{plural} {' and '.join(f'“{name}”' for name in missing)}."
        )
    return NetworkTools(pasta, nft)


def rules(policy: EgressPolicy, own_addresses: Iterable[str] = ()) -> str:
    """Return the nftables rules of the namespace. `own_addresses`: addresses of this machine."""
    lines = ["oifname lo accept"]
    if policy.routed:
        lines += ["icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } accept"]
        lines += [f"ip daddr {RESOLVER} udp dport 53 accept", f"ip daddr {RESOLVER} tcp dport 53 accept"]
        closed = [ipaddress.ip_network(address) for address in (*CLOSED, *own_addresses)]
        # This machine stays blocked, whatever is allowed.
        lines += _address_rules([ipaddress.ip_network(address) for address in own_addresses], "reject")
        lines += _address_rules(policy.allowed, "accept")
        if policy.egress is Egress.OPEN:
            lines += [*_address_rules(closed, "reject"), "accept"]
    lines += ["reject"]
    chain = "\n".join(f"        {line}" for line in lines)
    return (
        "table inet berth {\n    chain out {\n"
        f"        type filter hook output priority 0; policy drop;\n{chain}\n    }}\n}}\n"
    )


def _address_rules(networks: Iterable[Network], verdict: str) -> list[str]:
    return [f"ip{'6' if network.version == 6 else ''} daddr {network} {verdict}" for network in networks]


def addresses_here() -> list[str]:
    """Return all addresses of this machine except loopback and link-local ones."""
    addresses: list[str] = []
    try:
        local = re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", Path("/proc/net/fib_trie").read_text())
        addresses += [address for address in local if not address.startswith("127.")]
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            address = ipaddress.IPv6Address(int(line.split()[0], 16))
            if not address.is_loopback and not address.is_link_local:
                addresses.append(str(address))
    except OSError:
        pass  # without IPv6 there is no such file
    return list(dict.fromkeys(addresses))


def resolv_conf(system: str) -> str:
    """Return the sandbox's /etc/resolv.conf: `RESOLVER`, and the search domains and options of `system`."""
    inherited = [line for line in system.splitlines() if line.startswith(("search ", "options ", "domain "))]
    return "\n".join((f"nameserver {RESOLVER}", *inherited, ""))


def join(tools: NetworkTools, init: int, folder: Path, policy: EgressPolicy) -> None:
    """Apply rules and start egress for the sandbox whose first process is `init`. Raises `StartFailed`.

    Idempotent: rules are replaced, and running egress processes are kept.
    """
    ticks = processes.start_ticks(init)
    pasta_runs, proxy_runs = _kinds(folder)
    uid = processes.user_of(init)
    other_uid = uid if uid != os.geteuid() else None
    plan = {
        "pid": init,
        "start_ticks": ticks,
        "uid": other_uid,
        "program": tools.pasta,
        "nft": tools.nft,
        # One transaction, so rules apply at every moment.
        "rules": "table inet berth\ndelete table inet berth\n" + rules(policy, addresses_here()),
        "pasta_argv": _pasta(tools.pasta, folder, other_uid) if policy.routed and not pasta_runs else [],
    }
    _run([str(JOIN)], plan)
    if policy.proxied and not proxy_runs:
        plan = {
            "pid": init,
            "start_ticks": ticks,
            "uid": other_uid,
            "port": PROXY_PORT,
            "log": str(folder / "proxy.log"),
            "hosts": [str(rule) for rule in policy.hosts],
            "networks": [str(network) for network in policy.allowed],
        }
        _run([proxy_inside.__file__, str(_proxy_path(folder))], plan)


def _run(script: Sequence[str], plan: Mapping[str, Any]) -> None:
    """Run the script with `plan` as input. Raises `StartFailed` if it fails."""
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-S", *script],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            timeout=JOIN_TIMEOUT_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _start_error(str(error)) from error
    if process.returncode:
        raise _start_error(process.stderr.strip()[-1000:])


def _start_error(detail: str) -> StartFailed:
    return StartFailed(
        "The workspace's network could not be created. Try again, or ask an operator to check the node.",
        detail=detail,
    )


def _pasta(program: str, folder: Path, other_uid: int | None) -> list[str]:
    """Return the arguments of pasta: connections from inside only, no forwarded ports.

    `other_uid`: the user id that it runs as, if not this one. That user cannot write a PID file, so the
    process is recognised by its argv[0], a path in the workspace's folder that must end in “pasta”.
    """
    options = [
        "--quiet", "--config-net", "--no-map-gw", "--dns-forward", RESOLVER,
        "-t", "none", "-u", "none", "-T", "none", "-U", "none",
    ]  # fmt: skip
    if other_uid is not None:
        return [str(_pasta_path(folder)), *options]
    log = ["--log-file", str(folder / "network.log"), "--log-size", "65536"]
    return [program, *options, *log, "--pid", str(_pid_path(folder))]


_MARKS = ("network.pid", "pasta", "proxy")
"""Names in a workspace's folder that identify its egress processes: pasta, pasta of another user, proxy."""


def _pid_path(folder: Path) -> Path:
    return folder / _MARKS[0]


def _pasta_path(folder: Path) -> Path:
    return folder / _MARKS[1]


def _proxy_path(folder: Path) -> Path:
    return folder / _MARKS[2]


def proxy_env(policy: EgressPolicy) -> dict[str, str]:
    """Return the environment variables that point programs to the egress proxy, if there is one."""
    if not policy.proxied:
        return {}
    url, no_proxy = f"http://127.0.0.1:{PROXY_PORT}", "localhost,127.0.0.1,::1"
    variables = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": no_proxy}
    return {**variables, **{name.lower(): value for name, value in variables.items()}}


def egress_processes(folder: Path) -> list[tuple[int, int]]:
    """Return (PID, start ticks) of the egress processes of the workspace with this folder."""
    marks = {os.fsencode(path) for path in (_pid_path(folder), _pasta_path(folder), _proxy_path(folder))}
    return [(pid, ticks) for pid, ticks, argv in _egress_candidates() if marks.intersection(argv)]


def complete(folder: Path, policy: EgressPolicy) -> bool:
    """Return whether all egress processes that the policy needs are running."""
    pasta, proxy = _kinds(folder)
    return (pasta or not policy.routed) and (proxy or not policy.proxied)


def _kinds(folder: Path) -> tuple[bool, bool]:
    """Return whether pasta runs for the workspace with this folder, and whether its proxy runs."""
    pasta, proxy = (
        {os.fsencode(_pid_path(folder)), os.fsencode(_pasta_path(folder))},
        os.fsencode(_proxy_path(folder)),
    )
    argvs = [argv for _, _, argv in _egress_candidates()]
    return any(pasta.intersection(argv) for argv in argvs), any(proxy in argv for argv in argvs)


def end(folder: Path) -> bool:
    """Kill the workspace's egress processes; return True once all are gone."""
    remaining = egress_processes(folder)
    processes.kill((), [pid for pid, _ in remaining])
    return not remaining


@dataclass(frozen=True, slots=True)
class EgressProcess:
    """An egress process of a workspace or probe, with the folder that it names."""

    pid: int
    start_ticks: int
    folder: Path


def egress_processes_below(base: Path) -> list[EgressProcess]:
    """Return all egress processes that name a folder below `base`, whether the folder exists or not."""
    result = []
    for pid, ticks, argv in _egress_candidates():
        marks = (
            Path(os.fsdecode(argument)) for argument in argv if argument.startswith(os.fsencode(base) + b"/")
        )
        mark = next((path for path in marks if path.name in _MARKS), None)
        if mark is not None:
            result.append(EgressProcess(pid, ticks, mark.parent))
    return result


def _egress_candidates() -> Iterable[tuple[int, int, Sequence[bytes]]]:
    """Yield (PID, start ticks, argument vector) of every visible pasta and proxy.

    Processes in a sandbox can imitate names and arguments and are excluded by `_is_outside_sandbox`.
    """
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted, and there are many
        if not entry.isdigit():
            continue
        try:
            name = Path("/proc", entry, "comm").read_text()
            pasta = name.startswith(("pasta", "passt"))
            if not (pasta or name.startswith("python")) or not _is_outside_sandbox(int(entry), pasta=pasta):
                continue
            argv = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ticks = processes.start_ticks(int(entry))
        if ticks is not None:
            yield int(entry), ticks, argv


def _is_outside_sandbox(pid: int, *, pasta: bool) -> bool:
    """Return whether the process runs outside every sandbox, as real egress processes do.

    A proxy is in this PID namespace, which no tenant is. pasta creates a nested PID namespace and is its
    first process. So is the first process of a sandbox, but that one stays a child of bubblewrap. Processes
    started or nested by a tenant are never the first process at that depth.
    """
    numbers = processes.numbers_of(pid)
    if len(numbers) == 1:
        return True
    if not pasta or len(numbers) != 2 or numbers[-1] != 1:
        return False
    parent = processes.parent_of(pid)
    return parent is not None and not processes.name_of(parent).startswith(BUBBLEWRAP)
