"""User ids of workspace owners, if the node worker is root.

Each owner gets a permanent number, stored in `local/.uids/<owner>`. No number is ever reused, even after its
owner is gone. Spares (`spares.py`) have no owner yet. Each uses a number of the range for spares while it
lives, and the home it gets is id-mapped to that number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from provisioning.drivers.local.state import write_atomically
from provisioning.errors import StartFailed
from provisioning.workspace_uids import VARIABLE, UidRange


class Uids:
    """Numbers assigned on this machine. `base` is the local driver's folder."""

    def __init__(self, base: Path, numbers: UidRange) -> None:
        self.folder = base / ".uids"
        self.numbers = numbers

    def uid_of(self, owner: str) -> int:
        """Return the owner's number, assigned now if there is none. Raises `StartFailed` or `OSError`.

        `owner` names a home folder, so it has no slash and does not begin with a dot.
        """
        existing = self._read(owner)
        if existing is not None:
            return existing
        with self._exclusive_lock():
            existing = self._read(owner)
            if existing is not None:
                return existing
            unavailable = set(self.assigned_uids())
            number = next((number for number in self.numbers.owners if number not in unavailable), None)
            if number is None:
                raise StartFailed(f"All user IDs of {VARIABLE} are assigned. Enlarge the range on this node.")
            write_atomically(self.folder / owner, f"{number}\n".encode())
            return number

    def for_spare(self, used: Iterable[int]) -> int | None:
        """Return a number unused by owners and by the spares in `used`; None if none is left."""
        unavailable = {*self.assigned_uids(), *used}
        return next((number for number in self.numbers.spares if number not in unavailable), None)

    def assigned_uids(self) -> list[int]:
        """Return the numbers of all owners. Raises `OSError`."""
        try:
            names = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        return [number for name in names if (number := self._read(name)) is not None]

    def _read(self, owner: str) -> int | None:
        try:
            return int((self.folder / owner).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StartFailed(
                f"{self.folder / owner} does not contain a user ID. Write the ID of the home's owner to it.",
                detail=str(error),
            ) from error

    @contextlib.contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
