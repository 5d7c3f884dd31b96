"""Bubblewrap sandbox of a workspace, as one argument vector.

`bwrap_argv` is a pure function. The workspace sees the system's programs and libraries, a minimal /etc, its
environment, its home, its run folder and its GPUs. It sees nothing else of this machine: no state, database
or environment of the portal, and no other home. It has its own network if this machine supports that
(`network.py`). Otherwise the app listens on the shared loopback address, protected by a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

UID = 1000
AGENT_PATH = "/run/berth/agent"
AGENT_PROGRAM_PATH = f"{AGENT_PATH}/agent.py"
RUN_PATH = "/run/berth/ws"
APPS_PATH = "/run/berth/apps"
JUPYTER_PATH = "/run/berth/jupyter"
SECRETS_PATH = "/run/berth/secrets"
"""Files of secrets, written by the agent to the sandbox's own tmpfs."""
GIT_PATH = "/run/berth/git"
"""Git's settings and credentials, written by the agent to the sandbox's own tmpfs."""
PROGRESS_PATH = "/run/berth/progress"
"""Progress reports of jobs, on the sandbox's own tmpfs."""
PROGRAMS_PATH = "/run/berth/bin"
NODE_PATH = "/run/berth/node"
"""The folder of the socket to the portal."""
USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,62}")
ETC_SHARED = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/fonts", "/etc/host.conf", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf",
    "/etc/OpenCL", "/etc/pki/ca-trust", "/etc/pki/tls/cert.pem", "/etc/pki/tls/certs", "/etc/protocols",
    "/etc/R", "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/terminfo",
    "/etc/timezone",
)  # fmt: skip
ETC_OWN = ("passwd", "group", "hosts", "resolv.conf")
# If the node worker runs as root, the workspace's user is that root without capabilities, and the kernel lets
# a file's owner access these. Masked, as container engines do.
PROC_READONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/fs", "/proc/irq")
PROC_MASKED = (
    "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
    "/proc/latency_stats", "/proc/mtrr", "/proc/slabinfo", "/proc/timer_list", "/proc/vmallocinfo",
)  # fmt: skip
OWN_TMPFS = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - the sandbox's own
GPU_SHARED = ("/sys/bus/pci", "/sys/devices", "/sys/module/nvidia")


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """Inputs of `bwrap_argv`. Paths are on this machine unless stated otherwise.

    `system` lists (path, link target or empty) for /bin, /lib and the like. `readonly` are folders shown at
    the same path. `masked` are the existing paths of `PROC_MASKED`. `etc` is the folder with the files of
    `ETC_OWN`, `agent` that of the agent, `gateway` that of the socket to the portal. An empty `home` or
    `agent` is omitted. `readonly_at` and `writable_at` are pairs of a path here and a path inside. `command`
    replaces the agent and its configuration file. If `filtered`, the launcher substitutes the seccomp filter
    for `{seccomp}`. If `runsc` (its path) is set, the workspace runs in gVisor (`gvisor.py`) with the
    configuration in `bundle`, and its app listens on `port`.
    """

    bwrap: str
    system: tuple[tuple[str, str], ...]
    readonly: tuple[str, ...]
    python: str
    agent: str
    run: str
    gateway: str
    etc: str
    home: str
    user: str
    hostname: str
    env: Mapping[str, str]
    command: tuple[str, ...] = ()
    readonly_at: tuple[tuple[str, str], ...] = ()
    writable_at: tuple[tuple[str, str], ...] = ()
    masked: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    disable_userns: bool = True
    own_network: bool = False
    filtered: bool = False
    runsc: str = ""
    bundle: str = ""
    port: int = 0

    @property
    def home_inside(self) -> str:
        """Path of the home folder inside the sandbox."""
        return f"/home/{self.user}"


def namespace_argv(*, disable_userns: bool, own_network: bool) -> list[str]:
    """Return the options that create the namespaces, also used by the probe."""
    argv = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if disable_userns:
        argv.append("--disable-userns")
    if own_network:
        argv.append("--unshare-net")
    return [*argv, "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL", "--new-session"]


def system_argv(system: tuple[tuple[str, str], ...]) -> list[str]:
    """Return options for a read-only /usr, with /bin, /lib and the like as on this machine."""
    argv = ["--ro-bind", "/usr", "/usr"]
    for path, target in system:
        argv += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    return argv


def proc_argv(masked: tuple[str, ...]) -> list[str]:
    """Return options that mask the machine-wide parts of /proc."""
    argv = ["--ro-bind", PROC_READONLY[0], PROC_READONLY[0]]
    for path in PROC_READONLY[1:]:
        argv += ["--ro-bind-try", path, path]
    for path in masked:
        argv += ["--ro-bind", "/dev/null", path]
    return argv


def bwrap_argv(plan: SandboxPlan) -> tuple[str, ...]:
    """Return the whole command: bubblewrap, the agent's Python, the agent and its configuration."""
    namespaces = namespace_argv(disable_userns=plan.disable_userns, own_network=plan.own_network)
    argv = [plan.bwrap, *namespaces, "--hostname", plan.hostname]
    if plan.filtered:
        argv += ["--seccomp", "{seccomp}"]
    argv += system_argv(plan.system)
    for path in ETC_SHARED:
        argv += ["--ro-bind-try", path, path]
    for name in ETC_OWN:
        argv += ["--ro-bind", f"{plan.etc}/{name}", f"/etc/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    argv += proc_argv(plan.masked)
    for path in OWN_TMPFS:
        argv += ["--tmpfs", path]
    argv += ["--ro-bind-try", "/sys/devices/system", "/sys/devices/system"]
    if plan.device_nodes:
        for path in GPU_SHARED:
            argv += ["--ro-bind-try", path, path]
    for node in plan.device_nodes:
        argv += ["--dev-bind", node, node]
    for path in plan.readonly:
        argv += ["--ro-bind", path, path]
    if plan.home:
        argv += ["--bind", plan.home, plan.home_inside]
    if plan.agent:
        argv += ["--ro-bind", plan.agent, AGENT_PATH]
    argv += ["--bind", plan.run, RUN_PATH, "--ro-bind", plan.gateway, NODE_PATH]
    for path, inside in plan.readonly_at:
        argv += ["--ro-bind", path, inside]
    for path, inside in plan.writable_at:
        argv += ["--bind", path, inside]
    argv += ["--chdir", plan.home_inside if plan.home else "/", "--clearenv"]
    for key, value in sorted(plan.env.items()):
        argv += ["--setenv", key, value]
    command = plan.command or (plan.python, "-I", "-S", AGENT_PROGRAM_PATH, f"{RUN_PATH}/agent.json", "{app}")
    return (*argv, "--", *command)


def hostname(name: str) -> str:
    """Return a legal host name derived from the workspace's display name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "workspace"


def etc_files(user: str, host: str, *, system_hosts: str, resolv_conf: str) -> dict[str, str]:
    """Return the generated files of /etc: `ETC_OWN`."""
    return {
        "passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"{user}:x:{UID}:{UID}:{user}:/home/{user}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group": f"root:x:0:\n{user}:x:{UID}:\nnogroup:x:65534:\n",
        "resolv.conf": resolv_conf,
        "hosts": f"127.0.0.1 localhost {host}\n::1 localhost\n{system_hosts}",
    }
