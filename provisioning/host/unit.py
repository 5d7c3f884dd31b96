"""The node as a systemd service: a system service for root, otherwise a user service."""

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
"""First version of systemd with `DelegateSubgroup`."""
NEVER_NEEDED = (
    "CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_BLOCK_SUSPEND CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYSLOG "
    "CAP_SYS_BOOT CAP_SYS_PACCT CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit: its file, whether it belongs to a user, and the version of systemd."""

    path: Path
    user: bool
    systemctl: str
    version: int = 0

    def exists(self) -> bool:
        return self.path.exists()

    def install(self, folder: NodeFolder, name: str) -> None:
        """Write, enable and start the unit. Raises `Problem`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = text(folder, name, user=self.user, version=self.version)
            write_file(self.path, written, mode=0o644)
        except OSError as error:
            raise Problem(
                f"{self.path} cannot be written ({error.strerror}).", f"Run by hand: {command(folder)}"
            ) from error
        self._run_systemctl("daemon-reload")
        self._run_systemctl("enable", NAME)
        self._run_systemctl("restart", NAME)

    def remove(self) -> None:
        """Stop and remove the unit. Raises `Problem`."""
        if not self.exists():
            return
        self._run_systemctl("disable", "--now", NAME)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise Problem(f"{self.path} cannot be removed ({error.strerror}).", "Remove it.") from error
        self._run_systemctl("daemon-reload")

    def _run_systemctl(self, *arguments: str) -> None:
        argv = [self.systemctl, *(["--user"] if self.user else []), *arguments]
        command_line = " ".join(["systemctl", *argv[1:]])
        try:
            process = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Problem(f"`{command_line}` does not work ({error}).", "Check that systemd runs.") from error
        if process.returncode:
            reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise Problem(
                f"`{command_line}` failed: {reason}", f"See: journalctl {self._user_option()}-u {NAME}"
            )

    def _user_option(self) -> str:
        return "--user " if self.user else ""


def find(environ: Mapping[str, str]) -> Unit | str:
    """Return the current user's unit, or the reason why there is no systemd to run it."""
    program = shutil.which("systemctl", path=environ.get("PATH"))
    if program is None or not BOOTED.is_dir():
        return "This machine was not started by systemd."
    if os.geteuid() == 0:
        return Unit(SYSTEM_UNITS / NAME, user=False, systemctl=program, version=_version(program))
    if not environ.get("XDG_RUNTIME_DIR"):
        return "This user has no systemd session here (XDG_RUNTIME_DIR is not set)."
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Unit(config / "systemd" / "user" / NAME, user=True, systemctl=program, version=_version(program))


def lingers() -> bool:
    """Return whether this user's services continue after sign-out."""
    return Path("/var/lib/systemd/linger", _user()).exists()


def linger_hint() -> str:
    return f"The node stops when you sign out, unless you run: sudo loginctl enable-linger {_user()}"


def command(folder: NodeFolder) -> str:
    """Return the command that runs the node manually."""
    return f"{_berth()} node run --home {folder.home}"


def start_command(folder: NodeFolder) -> str:
    """Return the command that starts the node's services: by its unit, if it has one."""
    unit = find(os.environ)
    if isinstance(unit, str) or not unit.exists():
        return command(folder)
    return f"systemctl {'--user ' if unit.user else ''}start {NAME}"


def text(folder: NodeFolder, name: str, *, user: bool, version: int) -> str:
    """Return the unit file for this version of systemd."""
    run = " ".join(
        map(_quote, (sys.executable, "-m", "portal.cli.main", "node", "run", "--home", str(folder.home)))
    )
    return "\n".join(
        (
            "[Unit]",
            f"Description=Berth node {name}",
            *(() if user else ("Wants=network-online.target", "After=network-online.target")),
            # Never give up, even if the portal is unavailable for a long time.
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=notify",
            "NotifyAccess=main",
            f"ExecStart={run}",
            f"WorkingDirectory={str(ROOT).replace('%', '%%')}",
            "Restart=always",
            "RestartSec=5",
            # Workspaces outlive the services, which find them again after a restart. An OOM kill of one
            # workspace must not end the others.
            "KillMode=process",
            "OOMPolicy=continue",
            *_groups(version),
            # Each workspace has its own limits; systemd's limits for the whole unit would be too small.
            "TasksMax=infinity",
            "LimitNOFILE=65536",
            # No options that create a mount namespace or a device list: the services mount homes and pass
            # GPUs to workspaces.
            *(() if user else (f"CapabilityBoundingSet=~{NEVER_NEEDED}",)),
            "",
            "[Install]",
            f"WantedBy={'default.target' if user else 'multi-user.target'}",
            "",
        )
    )


def _groups(version: int) -> tuple[str, ...]:
    """Return the options that let the worker limit workspaces by control groups.

    In control groups v2, systemd cannot put a process into a group whose children have limits, so it could
    not restart the services while workspaces run. Without `DelegateSubgroup`, the worker uses other groups:
    root's beside the unit, a user's in a separate scope (`user_scope`).
    """
    if version < SUBGROUP_VERSION:
        return ()
    return ("Delegate=cpu memory pids", f"DelegateSubgroup={delegation.LEAF}")


def _version(program: str) -> int:
    """Return the version of systemd as reported by `systemctl`; 0 if unknown."""
    try:
        process = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.match(r"systemd (\d+)", process.stdout)
    return int(match[1]) if match else 0


def _berth() -> str:
    program = Path(sys.executable).with_name("berth")
    return str(program) if program.exists() else "berth"


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _quote(argument: str) -> str:
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(character in " \t\"'" for character in argument) else escaped
