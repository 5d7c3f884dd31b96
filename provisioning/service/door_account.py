"""Unprivileged account of the front door or a node's gateway (docs/adr/0076-door-account.md).

It differs from the account of the portal's services: taking over the front door yields none of their keys,
and taking over a service does not give access to sockets of workspaces.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning import workspace_uids
from provisioning.drivers.local import door
from provisioning.endpoints import PORTAL_SOCKET
from provisioning.service import trial
from provisioning.service.confinement import ServiceNeeds, plan
from provisioning.service.door_uid import VARIABLE
from provisioning.service.environ import bare_environ
from provisioning.service.program import Program

CAP_NET_BIND_SERVICE = 10
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_MIN_PORT_FILE = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_DEFAULT_MIN_PORT = 1024


class AccountUnusable(Exception):
    """A service cannot have its own account; the text gives the reason and the fix."""


@dataclass(frozen=True, slots=True)
class DoorAccount:
    """The account `uid` that runs Caddy in the folder `local` of the local driver's state.

    In `covered` folders it sees only what it needs.
    """

    uid: int
    local: Path
    caddy: Path
    covered: tuple[Path, ...]

    def needs(self, files: Sequence[Path], environ: Mapping[str, str]) -> ServiceNeeds:
        """Return the paths that a Caddy with these `files` (configuration, certificates, key) may use."""
        own = ((self.local / PORTAL_SOCKET).parent, self.local / door.STORAGE)
        return self.caddy_needs(files, environ, reads=(self.local,), writes=own)

    def caddy_needs(
        self,
        files: Sequence[Path],
        environ: Mapping[str, str],
        *,
        reads: tuple[Path, ...] = (),
        writes: tuple[Path, ...] = (),
    ) -> ServiceNeeds:
        """Return the paths that a Caddy may read and write, with `reads` and `writes` in addition."""
        paths = (Path(environ[name]) for name in _CERTIFICATES if environ.get(name))
        trusted = tuple(path for path in paths if path.is_absolute() and path.exists())
        return ServiceNeeds(
            reads=(self.caddy, *trusted, *reads), writes=writes, copies=tuple(files), covered=self.covered
        )

    def confine(
        self, program: Program, needs: ServiceNeeds, *, ports: Sequence[int] = (), groups: Sequence[int] = ()
    ) -> Program:
        """Return the program confined to the account, listening on `ports`, as a member of `groups`."""
        environ = {key: value for key, value in program.environ.items() if key not in _TEMPORARY}
        return replace(
            program,
            environ={**environ, "HOME": str(self.local / door.STORAGE)},
            confinement=plan(self.uid, needs, groups=groups, capabilities=capabilities(ports)),
        )

    def grant_access(self) -> None:
        """Give the account its files and access to sockets, while nothing runs. Raises `OSError`."""
        door.own_folders(self.local, self.uid)
        door.open_to(self.local, self.uid)

    def attempt(
        self, config: Path, files: Sequence[Path], environ: Mapping[str, str], ports: Sequence[int]
    ) -> None:
        """Test that Caddy can read its configuration and sockets as the account. Raises `AccountUnusable`.

        Changes nothing.
        """
        try:
            if workspace_uids.is_for_workspaces(self.uid, environ):
                raise AccountUnusable(
                    f"{VARIABLE} is in the range of {workspace_uids.VARIABLE}; choose another user ID"
                )
            _try_socket(self.local, self.uid)
            why = trial.failure_of(
                (str(self.caddy), "validate", "--config", str(config)),
                confinement=plan(
                    self.uid, self.caddy_needs(files, environ), capabilities=capabilities(ports)
                ),
                environ={**bare_environ(environ), "HOME": "/nonexistent"},
                folder=Path("/"),
            )
        except OSError as error:
            raise AccountUnusable(str(error)) from error
        if why:
            raise AccountUnusable(why)


def restrict_sockets(local: Path) -> None:
    """Restrict sockets of workspaces to root again if a door had access. Raises `OSError`."""
    if os.geteuid() == 0 and local.is_dir() and local.stat().st_gid:
        door.own_folders(local, 0)
        door.open_to(local, 0)


def capabilities(ports: Sequence[int]) -> tuple[int, ...]:
    """Return the capabilities needed to listen on these ports."""
    try:
        min_port = int(_MIN_PORT_FILE.read_text())
    except (OSError, ValueError):
        min_port = _DEFAULT_MIN_PORT
    return (CAP_NET_BIND_SERVICE,) if any(port < min_port for port in ports) else ()


def _try_socket(local: Path, uid: int) -> None:
    """Check that the file system supports group sockets. Raises `OSError` or `AccountUnusable`."""
    with tempfile.TemporaryDirectory(dir=local, prefix=".trial-") as name:
        folder, inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), Path(name, "app.sock")
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                # Socket paths are limited to 107 bytes.
                listener.bind(f"/proc/self/fd/{folder}/app.sock")
                os.chown(inside, 0, uid)
                inside.chmod(0o660)
                status = inside.stat()
        finally:
            os.close(folder)
        if (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) != (0, uid, 0o660):
            raise AccountUnusable(f"the file system of {local} does not support sockets with a group")
