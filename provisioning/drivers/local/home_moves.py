"""Transfers of homes from and to other machines, on the disk of this one.

The file server builds an incoming home in `<homes>/<team>/.moving-<owner>/home`, in the sandbox of its user.
At the very end the home is renamed to its place. `local/.moves/<home>` records the transfer and its state;
only the node worker can write it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.drivers.local import homes as home_folders
from provisioning.drivers.local.failures import Busy
from provisioning.drivers.local.file_server import FileServers, Home
from provisioning.drivers.local.state import write_atomically
from provisioning.errors import Blame, ProvisioningError
from provisioning.types import home_key

INCOMING, PLACING, PLACED = "coming", "placing", "placed"
RECORDS = ".moves"


class HomeExists(ProvisioningError):
    """A home of the user already exists at the destination."""

    code = "home_there"
    retryable = False
    blame = Blame.OPERATOR


@dataclass(frozen=True, slots=True)
class HomeMoves:
    """Transfers of homes on this node."""

    servers: FileServers

    def offer(self, home: Home, *, digest: str, lifetime_s: float) -> dict[str, Any]:
        """Grant the holder of the ticket with this digest read access to the home.

        See `FileServers.query`.
        """
        grant = {"do": "grant", "what": "home", "path": "", "digest": digest, "lifetime_s": lifetime_s}
        return self.servers.query(home, grant)

    def begin(self, home: Home, move: str) -> bool:
        """Return whether the home is in place already; otherwise prepare its folder for this transfer.

        Continues a transfer that was interrupted. Raises `HomeExists`, `ProvisioningError` and `OSError`.
        """
        record = self._record(home)
        if record and record["move"] != move:
            if record["state"] != PLACED:
                self._drop(home, limit_s=20.0)
            record = {}
        if (
            record
            and record["state"] != INCOMING
            and self._path(home).is_dir()
            and not self._received_home(home).exists()
        ):
            self._save_record(home, move, PLACED)
            return True
        if not record:
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._path(home).rmdir()
                except OSError as error:
                    if error.errno == errno.ENOENT:
                        raise
                    raise HomeExists(
                        f"This machine already has a home {home_key(home.team, home.owner)}. "
                        "Check its files on the machine, then move the folder away.",
                        detail=str(self._path(home)),
                    ) from error
            self._save_record(home, move, INCOMING)
        for path in (self.servers.homes, self._path(home).parent, self._incoming_path(home)):
            path.mkdir(mode=0o700, exist_ok=True)
        return False

    def query(
        self, home: Home, question: Mapping[str, Any], stream: Iterable[bytes] | None = None
    ) -> dict[str, Any]:
        """Send a request to the server that builds the home. See `FileServers.query`."""
        return self.servers.query(Home(home.team, home.owner, incoming=True), question, stream)

    def install(self, home: Home, move: str) -> None:
        """Rename the complete home to its place. Raises `OSError`."""
        self.servers.end(Home(home.team, home.owner, incoming=True))
        self._save_record(home, move, PLACING)
        target = self._path(home)
        self._received_home(home).rename(target)
        sync(target.parent)
        self._save_record(home, move, PLACED)
        shutil.rmtree(self._incoming_path(home), ignore_errors=True)

    def discard(self, home: Home, move: str, *, limit_s: float) -> bool:
        """Delete everything received in this transfer, even if installed; return True once all is gone."""
        record = self._record(home)
        if not record or record["move"] != move:
            return True
        if (
            record["state"] != INCOMING
            and self._path(home).is_dir()
            and not self._received_home(home).exists()
        ):
            self.servers.end(home)
            self._incoming_path(home).mkdir(mode=0o700, exist_ok=True)
            self._path(home).rename(self._received_home(home))
        if not self._drop(home, limit_s=limit_s):
            return False
        self._forget(home)
        return True

    def remove(self, home: Home, *, limit_s: float) -> bool:
        """Delete the home, which was moved elsewhere; return True once all is gone."""
        self.servers.end(home)
        deleted = home_folders.delete(self.servers.homes, home.team, home.owner, limit_s=limit_s)
        if deleted:
            self._forget(home)
        return deleted

    @contextlib.contextmanager
    def exclusive(self, home: Home) -> Iterator[None]:
        """Exclude other operations on this home on this node. Raises `Busy`."""
        folder = self.servers.base / RECORDS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            folder / f".{digest_of(home)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise Busy(
                "Another operation on this home is in progress. The portal retries automatically."
            ) from error
        finally:
            os.close(descriptor)

    def _drop(self, home: Home, *, limit_s: float) -> bool:
        self.servers.end(Home(home.team, home.owner, incoming=True))
        name = Home(home.team, home.owner, incoming=True).folder
        return home_folders.delete(self.servers.homes, home.team, name, limit_s=limit_s)

    def _path(self, home: Home) -> Path:
        return self.servers.homes / home.team / home.owner

    def _incoming_path(self, home: Home) -> Path:
        return self.servers.homes / home.team / Home(home.team, home.owner, incoming=True).folder

    def _received_home(self, home: Home) -> Path:
        return self._incoming_path(home) / "home"

    def _record(self, home: Home) -> dict[str, str]:
        try:
            record = json.loads((self.servers.base / RECORDS / digest_of(home)).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {"move": str(record["move"]), "state": str(record["state"])}

    def _save_record(self, home: Home, move: str, state: str) -> None:
        text = json.dumps({"move": move, "state": state, "home": home_key(home.team, home.owner)})
        write_atomically(self.servers.base / RECORDS / digest_of(home), text.encode())

    def _forget(self, home: Home) -> None:
        (self.servers.base / RECORDS / digest_of(home)).unlink(missing_ok=True)


def digest_of(home: Home) -> str:
    """Return the name of a home in records."""
    return hashlib.sha256(f"{home.team}/{home.owner}".encode()).hexdigest()[:32]


def sync(folder: Path) -> None:
    """Make renames in the folder durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
