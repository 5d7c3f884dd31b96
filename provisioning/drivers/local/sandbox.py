"""The bubblewrap sandbox of a workspace: what it sees, as one argument vector.

`bwrap_argv` is a pure function. It shows the workspace the system's programs and libraries, a
minimal /etc, its environment, its home, its run folder and its GPUs; nothing else of this machine:
not the portal's state, database or environment, not another home. Its network is its own where this
machine can make one (`network.py`); otherwise the app listens on the shared loopback address behind a token.
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
"""Where the agent puts secrets that are files: in `/run`, which is memory of the sandbox's own."""
GIT_PATH = "/run/berth/git"
"""Where the agent puts Git's settings and credentials: memory of the sandbox's own, too."""
PROGRESS_PATH = "/run/berth/progress"
"""Where jobs tell how fast they go on: memory of the sandbox's own, too."""
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
# Where the node worker runs as root, the workspace's user is that root without its capabilities, and the
# kernel lets the owner of these files write or read them: they are covered, as container engines do.
PROC_READONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/fs", "/proc/irq")
PROC_MASKED = (
    "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
    "/proc/latency_stats", "/proc/mtrr", "/proc/slabinfo", "/proc/timer_list", "/proc/vmallocinfo",
)  # fmt: skip
OWN_TMPFS = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - the sandbox's own
GPU_SHARED = ("/sys/bus/pci", "/sys/devices", "/sys/module/nvidia")


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """Everything `bwrap_argv` needs. Paths are of this machine unless they say otherwise.

    `system` lists (path, link target or empty) for /bin, /lib and the like; `readonly` are folders shown at
    their own path; `masked` are those of `PROC_MASKED` that exist here; `etc` is the folder with the files
    of `ETC_OWN`, `agent` that of the agent, `gateway` that of the socket to the portal. An empty `home` or
    `agent` shows none. `readonly_at` are more paths here with their paths inside, and so are `writable_at`,
    which can be written; `command` is instead of the agent with its configuration file.
    Where `filtered`, the launcher puts the filter of system calls in for `{seccomp}`. Where there is `runsc`,
    its path here, the workspace runs in gVisor (`gvisor.py`) with the configuration in the folder `bundle`,
    and its app listens on `port`.
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
        """The home folder's path inside the sandbox."""
        return f"/home/{self.user}"


def namespace_argv(*, disable_userns: bool, own_network: bool) -> list[str]:
    """The options that make the namespaces; the probe runs with the same."""
    argv = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if disable_userns:
        argv.append("--disable-userns")
    if own_network:
        argv.append("--unshare-net")
    return [*argv, "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL", "--new-session"]


def system_argv(system: tuple[tuple[str, str], ...]) -> list[str]:
    """/usr read-only, and /bin, /lib… as they are on this machine."""
    argv = ["--ro-bind", "/usr", "/usr"]
    for path, target in system:
        argv += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    return argv


def proc_argv(masked: tuple[str, ...]) -> list[str]:
    """Covers for the parts of /proc that concern the whole machine."""
    argv = ["--ro-bind", PROC_READONLY[0], PROC_READONLY[0]]
    for path in PROC_READONLY[1:]:
        argv += ["--ro-bind-try", path, path]
    for path in masked:
        argv += ["--ro-bind", "/dev/null", path]
    return argv


def bwrap_argv(plan: SandboxPlan) -> tuple[str, ...]:
    """The whole command: bubblewrap, the agent's Python, the agent and its configuration."""
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
    """A legal host name made from the workspace's display name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "workspace"


def etc_files(user: str, host: str, *, system_hosts: str, resolv_conf: str) -> dict[str, str]:
    """The synthesized files of /etc: `ETC_OWN`."""
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
