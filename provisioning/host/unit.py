"""The node as a service of systemd: of the system for root, of the user's own otherwise."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local import delegation
from provisioning.host.folder import NodeFolder
from provisioning.service.console import Problem
from provisioning.service.environ import ROOT
from provisioning.service.files import write_file

NAME = "berth-node.service"
BOOTED = Path("/run/systemd/system")
SYSTEM_UNITS = Path("/etc/systemd/system")
TIMEOUT_S = 60
SUBGROUP_VERSION = 254
"""The first version of systemd with `DelegateSubgroup`."""
NEVER_NEEDED = (
    "CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_BLOCK_SUSPEND CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYSLOG "
    "CAP_SYS_BOOT CAP_SYS_PACCT CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of systemd: its file, whether it belongs to a user, and the version of that systemd."""

    path: Path
    user: bool
    systemctl: str
    version: int = 0

    def exists(self) -> bool:
        return self.path.exists()

    def install(self, folder: NodeFolder, name: str) -> None:
        """Write and start it, now and at every boot. Raises `Problem`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = text(folder, name, user=self.user, version=self.version)
            write_file(self.path, written, mode=0o644)
        except OSError as error:
            raise Problem(
                f"{self.path} cannot be written ({error.strerror}).", f"Run by hand: {command(folder)}"
            ) from error
        self._ask("daemon-reload")
        self._ask("enable", NAME)
        self._ask("restart", NAME)

    def remove(self) -> None:
        """Stop it and take it away. Raises `Problem`."""
        if not self.exists():
            return
        self._ask("disable", "--now", NAME)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise Problem(f"{self.path} cannot be removed ({error.strerror}).", "Remove it.") from error
        self._ask("daemon-reload")

    def _ask(self, *arguments: str) -> None:
        argv = [self.systemctl, *(["--user"] if self.user else []), *arguments]
        words = " ".join(["systemctl", *argv[1:]])
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Problem(f"`{words}` does not work ({error}).", "See whether systemd answers.") from error
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise Problem(f"`{words}` failed: {said}", f"See: journalctl {self._own()}-u {NAME}")

    def _own(self) -> str:
        return "--user " if self.user else ""


def find(environ: Mapping[str, str]) -> Unit | str:
    """The unit of who runs this; a sentence where there is no systemd that would run it."""
    program = shutil.which("systemctl", path=environ.get("PATH"))
    if program is None or not BOOTED.is_dir():
        return "This machine was not started by systemd."
    if os.geteuid() == 0:
        return Unit(SYSTEM_UNITS / NAME, user=False, systemctl=program, version=_version(program))
    if not environ.get("XDG_RUNTIME_DIR"):
        return "This user has no session of systemd here (XDG_RUNTIME_DIR is not set)."
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Unit(config / "systemd" / "user" / NAME, user=True, systemctl=program, version=_version(program))


def lingers() -> bool:
    """Whether this user's services go on when nobody is signed in."""
    return Path("/var/lib/systemd/linger", _user()).exists()


def linger_hint() -> str:
    return f"It ends when you sign out, unless you run: sudo loginctl enable-linger {_user()}"


def command(folder: NodeFolder) -> str:
    """What runs the node by hand."""
    return f"{_berth()} node run --home {folder.home}"


def start_command(folder: NodeFolder) -> str:
    """What starts the node's services again: its unit where there is one."""
    found = find(os.environ)
    if isinstance(found, str) or not found.exists():
        return command(folder)
    return f"systemctl {'--user ' if found.user else ''}start {NAME}"


def text(folder: NodeFolder, name: str, *, user: bool, version: int) -> str:
    """The unit file, for this version of systemd."""
    run = " ".join(
        map(_quoted, (sys.executable, "-m", "portal.cli.main", "node", "run", "--home", str(folder.home)))
    )
    return "\n".join(
        (
            "[Unit]",
            f"Description=Berth node {name}",
            *(() if user else ("Wants=network-online.target", "After=network-online.target")),
            # A portal that is away for long is no reason to give up.
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=notify",
            "NotifyAccess=main",
            f"ExecStart={run}",
            f"WorkingDirectory={str(ROOT).replace('%', '%%')}",
            "Restart=always",
            "RestartSec=5",
            # Workspaces outlive the services, and are found again by the next ones; one that is killed for
            # want of memory is no reason to end the others.
            "KillMode=process",
            "OOMPolicy=continue",
            *_groups(version),
            # Each workspace has limits of its own: systemd's for a whole unit are for something smaller.
            "TasksMax=infinity",
            "LimitNOFILE=65536",
            # What would put the services into a mount namespace or behind a list of devices is not for them:
            # they mount homes, and give GPUs to workspaces.
            *(() if user else (f"CapabilityBoundingSet=~{NEVER_NEEDED}",)),
            "",
            "[Install]",
            f"WantedBy={'default.target' if user else 'multi-user.target'}",
            "",
        )
    )


def _groups(version: int) -> tuple[str, ...]:
    """Control groups for the worker to give limits by.

    With version 2 of control groups systemd cannot put a process into a group below which limits are: it
    could not start the services again while workspaces run. Where it does not know `DelegateSubgroup`, the
    worker takes groups elsewhere: root beside the unit, a user in a scope of its own (`user_scope`).
    """
    if version < SUBGROUP_VERSION:
        return ()
    return ("Delegate=cpu memory pids", f"DelegateSubgroup={delegation.LEAF}")


def _version(program: str) -> int:
    """Of systemd, as its `systemctl` says; 0 where it does not."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.match(r"systemd (\d+)", done.stdout)
    return int(found[1]) if found else 0


def _berth() -> str:
    beside = Path(sys.executable).with_name("berth")
    return str(beside) if beside.exists() else "berth"


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(each in " \t\"'" for each in word) else escaped
