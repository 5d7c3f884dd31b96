"""A machine with its own systemd: PID 1 of namespaces that show this machine's files.

Files written there stay in memory and are lost at the end, except in `shared` folders. It uses this machine's
network. Its control groups are below separate groups of this kernel: version 1 with systemd's hybrid layout,
or version 2.

`BERTH_TEST_SYSTEMD` names a folder with the files of another version of systemd, which are mounted over this
machine's (for a system with merged `/usr`: `usr/lib/systemd`, `usr/bin/systemctl`, …).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioning.service.environ import ROOT
from tests.instance import eventually

SYSTEMD = Path("/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup")
NEEDED = ("unshare", "nsenter", "pivot_root", "mount", "systemctl", "systemd-run", "dbus-daemon")
# These units would change the shared kernel, or clear folders.
MASKED = (
    "systemd-sysctl.service", "systemd-modules-load.service", "systemd-tmpfiles-setup.service",
    "systemd-tmpfiles-clean.timer", "systemd-udevd.service", "systemd-remount-fs.service",
    "systemd-update-utmp.service", "systemd-random-seed.service", "systemd-timesyncd.service",
    "systemd-networkd.service", "systemd-resolved.service", "console-getty.service", "getty.target",
    "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "dev-mqueue.mount", "dev-hugepages.mount",
)  # fmt: skip
BOOT = r"""
set -e
root=$1/root; shift
mount --make-rprivate /
mount -t tmpfs -o mode=0700 tmpfs "${root%/root}"
mkdir "$root" "${root%/root}/upper" "${root%/root}/work"
[ -z "$OVER" ] || cp -a "$OVER/." "${root%/root}/upper/"
mount -t overlay overlay -o "lowerdir=/,upperdir=${root%/root}/upper,workdir=${root%/root}/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
if [ -n "$VERSION_2" ] || [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=0755 tmpfs "$root/sys/fs/cgroup"
    for each in /sys/fs/cgroup/*/; do
        name=$(basename "$each")
        [ -L "/sys/fs/cgroup/$name" ] && continue
        mkdir "$root/sys/fs/cgroup/$name"
        case $name in
            unified) mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/$name";;
            systemd) mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/$name";;
            *) mount -t cgroup -o "$name" cgroup "$root/sys/fs/cgroup/$name";;
        esac
    done
fi
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for name in null zero full random urandom tty net/tun; do
    [ -e "/dev/$name" ] || continue
    mkdir -p "$(dirname "$root/dev/$name")"
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"; ln -s /proc/self/fd "$root/dev/fd"
for each in "$@"; do mkdir -p "$root$each"; mount --bind "$each" "$root$each"; done
for each in multi-user getty sockets timers sysinit; do
    rm -rf "$root/etc/systemd/system/$each.target.wants"
done
rm -f "$root"/etc/rc?.d/S*
for each in $MASKED; do ln -sf /dev/null "$root/etc/systemd/system/$each"; done
mkdir -p "$root/run/outside"
pivot_root "$root" "$root/run/outside"
cd /
umount -l /run/outside
exec env -i container=berth-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --log-target=console --show-status=0 --unit=multi-user.target
"""


WAY_OUT = """
ip link set lo up
ip link add outside type veth peer name inside
ip address add 10.99.0.1/24 dev inside
ip link set outside up; ip link set inside up
ip route add default via 10.99.0.2 dev inside
"""
"""For a machine with its own network: adds an uplink, which the networks of workspaces require."""


class SystemdMachine:
    """A started machine, in which commands can run."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def ask(self, *argv: str, user: str = "", check: bool = True) -> str:
        """Run a command there and return its standard output and error."""
        done = self.run(*argv, user=user)
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def run(self, *argv: str, user: str = "", limit_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command there: as root, or as a user with a systemd session."""
        inside = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "SYSTEMD_COLORS": "0"}
        if user:
            number = self.ask("id", "-u", user).strip()
            environ |= {"HOME": f"/home/{user}", "USER": user, "XDG_RUNTIME_DIR": f"/run/user/{number}"}
            argv = ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", *argv)
        return subprocess.run(
            [*inside, *argv], env=environ, capture_output=True, text=True, timeout=limit_s, check=False
        )

    def service(self, *argv: str, limit_s: float = 120, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command as root in a separate service, like a shell of this machine."""
        variables = [f"--setenv={name}={value}" for name, value in environ.items()]
        return self.run(
            "systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--working-directory={ROOT}",
            *variables, "--", *argv, limit_s=limit_s,
        )  # fmt: skip

    def shown(self, unit: str, name: str, *, user: str = "") -> str:
        """Return one property of a unit."""
        flags = ["--user"] if user else []
        return self.ask("systemctl", *flags, "show", "--value", "-p", name, unit, user=user).strip()


@contextmanager
def machine(
    folder: Path, *, shared: Sequence[Path] = (), version_2: bool = False, own_network: bool = False
) -> Iterator[SystemdMachine]:
    """Start a machine in `folder`. Skips, with the reason, if that is impossible.

    With `version_2` it has only control groups of version 2, whatever this machine has; controllers bound to
    version 1 are then missing. With `own_network` it has only a loopback interface.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can start another systemd")
    if missing := [program for program in NEEDED if not shutil.which(program)]:
        pytest.skip(f"a systemd of the test's own needs {', '.join(missing)}")
    if not SYSTEMD.exists():
        pytest.skip(f"there is no {SYSTEMD}")
    if not any(
        [
            *Path("/usr").glob("lib*/security/pam_systemd.so"),
            *Path("/usr/lib").glob("*/security/pam_systemd.so"),
        ]
    ):
        pytest.skip("sessions of users need Debian's libpam-systemd")
    if not (CGROUPS / "cgroup.controllers").exists() and not (CGROUPS / "systemd").is_dir():
        pytest.skip("systemd needs control groups of version 2, or the hierarchy name=systemd of version 1")
    (folder / "machine").mkdir(parents=True, exist_ok=True)
    shown = [path for path in _elsewhere() if path not in shared]
    groups = _groups(f"berth-systemd-{secrets.token_hex(4)}")
    log = folder / "console.log"
    namespaces = ["--mount", "--uts", "--ipc", "--cgroup", "--pid", *(["--net"] if own_network else [])]
    argv = ["unshare", *namespaces, "--fork", "sh", "-c", BOOT, "boot"]
    process = None
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*argv, str(folder / "machine"), *map(str, (*shared, *shown))],
                env={
                    "PATH": os.environ["PATH"],
                    "MASKED": " ".join(MASKED),
                    "VERSION_2": "1" if version_2 else "",
                    "OVER": os.environ.get("BERTH_TEST_SYSTEMD", ""),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: _enter(groups),
            )
        started_machine = _started(process)
        if started_machine is None:
            pytest.skip(f"no systemd starts here: {log.read_text(errors='replace').strip()[-300:]}")
        # The waiting process is outside the group: limits can be set only in groups without processes.
        for group in groups:
            (group.parent / "cgroup.procs").write_text(str(process.pid))
        yield started_machine
    finally:
        if process is not None:
            for pid in _children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(30)
        _remove(groups)


def _elsewhere() -> list[Path]:
    """Return folders that tests need on other file systems than `/`, which alone is visible there."""
    needed = {ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    named = os.environ.get("BERTH_TEST_NOTEBOOK_ENV")
    if named:
        needed.add(Path(named).resolve())
    device = Path("/").stat().st_dev
    return sorted(folder for folder in needed if folder.stat().st_dev != device)


def _groups(name: str) -> list[Path]:
    """Create a group for the whole machine in every hierarchy."""
    tops = [CGROUPS]
    if not (CGROUPS / "cgroup.controllers").exists():
        tops = [entry for entry in sorted(CGROUPS.iterdir()) if entry.is_dir() and not entry.is_symlink()]
    created = []
    for top in tops:
        group = top / name
        group.mkdir()
        created.append(group)
        for entry in ("cpuset.cpus", "cpuset.mems"):
            if top.name == "cpuset":
                (group / entry).write_text((top / entry).read_text())
    return created


def _enter(groups: Sequence[Path]) -> None:
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _started(process: subprocess.Popen[bytes]) -> SystemdMachine | None:
    """Return the machine once its systemd reports that it runs; None if it does not."""
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        time.sleep(0.1)
        for pid in _children(process.pid):
            candidate = SystemdMachine(pid)
            if candidate.run("systemctl", "is-system-running").stdout.strip() in {"running", "degraded"}:
                return candidate
    return None


def _remove(groups: Sequence[Path]) -> None:
    for group in groups:

        def is_empty(group: Path = group) -> bool:
            for child in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    child.rmdir()
            with contextlib.suppress(OSError):
                group.rmdir()
            return not group.exists()

        eventually(is_empty, limit_s=10, what=f"{group} is empty")
