"""The complete environments on this machine, under `$BERTH_HOME/environments/`.

  env-<digest>/                     an environment, named by its content
  env-<digest>/.berth-environment   its stamp, written last: a folder without one is ignored
  .staging/                         builds from wheels, and the cache that they share
  .building/<id>/                   builds that run code of packages: they share nothing
  .removing-<id>/                   environments being removed
  .build.lock                       lock of the one running build
  .used/<digest>                    when a workspace last started from it
  .requests/                        builds started here, and cancellations

Only the user of the node's worker writes here. Files that code of a package may have changed are read without
following links.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from provisioning.environment_messages import Package
from provisioning.environments.content import cuda_of, is_digest
from provisioning.environments.folders import Folder, Folders
from provisioning.environments.uses import in_use
from provisioning.types import HeldEnvironment

STAMP = ".berth-environment"
STAMP_MAX_BYTES = 4 << 20
PREFIX = "env-"
LOCK_POLL_INTERVAL_S = 0.2
KEEP_REQUESTS_S = 7 * 86400.0
KEEP_CACHE_MIB = 4096


@dataclass(frozen=True, slots=True)
class EnvironmentStamp:
    """Description of a complete environment.

    `place` is the folder that its scripts refer to; a copy elsewhere is invalid. `bases` are the folders of
    the Python installation that it depends on, determined before any code of a package ran. If `preloadable`,
    JupyterLab can be imported ahead, with the modules `preload` that it loads at its start.
    """

    digest: str
    place: str
    lock: str
    python: str
    python_version: str
    bases: tuple[str, ...]
    size_mib: int
    packages: tuple[Package, ...] = ()
    programs: tuple[str, ...] = ()
    preloadable: bool = False
    preload: tuple[str, ...] = ()
    cuda: str = ""
    folder: bool = False
    """Whether it is an existing environment of the operator. Its dependencies are determined at each use."""


class Store:
    """Environments of one node."""

    def __init__(self, folder: Path, folders: Folders | None = None) -> None:
        self.folder = folder
        self.folders = folders or Folders(list)
        self.staging = folder / ".staging"
        self.building = folder / ".building"
        self.cache = self.staging / ".uv-cache"

    def folder_of(self, digest: str) -> Path:
        """Return the environment's folder, existing or not. Raises `ValueError` for an invalid digest."""
        if not is_digest(digest):
            raise ValueError(f"not a digest: {digest!r}")
        return self.folder / f"{PREFIX}{digest}"

    def find(self, digest: str) -> EnvironmentStamp | None:
        """Return the environment's stamp, or None if it is not complete."""
        place = self.folder_of(digest)
        stamp = _read(place / STAMP)
        if stamp is None or stamp.digest != digest or stamp.place != str(place):
            folder = self.folders.find(digest)
            return _stamp_of_folder(folder) if folder is not None else None
        return stamp

    def environments(self) -> tuple[HeldEnvironment, ...]:
        """Return all complete environments by digest, then the existing folders."""
        stamps = (self.find(digest) for digest in self._digests())
        return (
            *(HeldEnvironment(stamp.digest, stamp.size_mib, stamp.programs) for stamp in stamps if stamp),
            *(
                HeldEnvironment(
                    folder.digest,
                    0,
                    folder.programs,
                    folder=folder.path,
                    python=folder.python_version,
                    package_count=len(folder.packages),
                    fingerprint=folder.fingerprint,
                )
                for folder in self.folders.all()
            ),
        )

    def _digests(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            names = (path.name.removeprefix(PREFIX) for path in self.folder.glob(f"{PREFIX}*"))
            return sorted(name for name in names if is_digest(name))
        return []

    # -- making one -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the folders. Raises `OSError`."""
        for path in (self.folder, self.staging, self.building, self.folder / ".used", self._requests):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def complete(self, build: Path, stamp: EnvironmentStamp) -> None:
        """Publish a build as an environment, atomically. Raises `OSError`.

        The files are on disk before the stamp, and the stamp before the rename.
        """
        _sync_file_system(build)
        (build / STAMP).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(build / STAMP, flags, 0o644)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(stamp), file)
            file.flush()
            os.fsync(file.fileno())
        place = self.folder_of(stamp.digest)
        if build != place:
            build.rename(place)
        _sync_folder(self.folder)

    @contextlib.contextmanager
    def build_lock(self, waiting: Callable[[], object] | None = None) -> Iterator[bool]:
        """Hold the build lock; yield whether it was acquired.

        With `waiting`, wait for the lock and call it repeatedly meanwhile; it raises to abort.
        """
        self.prepare()
        descriptor = os.open(self.folder / ".build.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not (acquired := _try_lock(descriptor, fcntl.LOCK_EX)) and waiting is not None:
                waiting()
                time.sleep(LOCK_POLL_INTERVAL_S)
            yield acquired
        finally:
            os.close(descriptor)

    def sweep(self) -> None:
        """Remove remains of interrupted builds and removals. The caller holds the build lock."""
        places = {PREFIX + stamp.digest for digest in self._digests() if (stamp := self.find(digest))}
        for path in self.folder.iterdir():
            half = path.name.startswith(PREFIX) and path.name not in places
            if half or path.name.startswith(".removing-"):
                remove_tree(path)
        for folder in (self.staging, self.building):
            with contextlib.suppress(FileNotFoundError):
                for path in folder.iterdir():
                    if path != self.cache:
                        remove_tree(path)
        with contextlib.suppress(FileNotFoundError):
            for path in self._requests.iterdir():
                with contextlib.suppress(OSError):
                    if time.time() > path.stat().st_mtime + KEEP_REQUESTS_S:
                        path.unlink()

    def prune_cache(self, *, keep_mib: int = KEEP_CACHE_MIB) -> None:
        """Delete the cache if more than `keep_mib` of it is in no environment. The caller holds the lock.

        Deletes it as a whole, because uv expects every file that it has recorded. Files that environments
        share survive there.
        """
        unshared = 0
        for folder, _, names in os.walk(self.cache):
            for name in names:
                facts = Path(folder, name).lstat()
                unshared += facts.st_blocks if facts.st_nlink == 1 else 0
        if unshared >> 11 > keep_mib:
            remove_tree(self.cache)

    # -- requests for builds, which any process of the worker may receive ----------------------------

    @property
    def _requests(self) -> Path:
        return self.folder / ".requests"

    @contextlib.contextmanager
    def request(self, key: str) -> Iterator[bool]:
        """Hold the request of this key; yield whether it is neither held elsewhere nor done."""
        self.prepare()
        with (self._requests / f"{_file_name(key)}.begun").open("a+") as file:
            acquired = _try_lock(file.fileno(), fcntl.LOCK_EX)
            if acquired:
                file.seek(0)
                acquired = not file.read()
            yield acquired
            if acquired:
                file.write("done")

    def cancel(self, key: str) -> None:
        """Cancel the request of this key in whichever process it runs."""
        self.prepare()
        (self._requests / f"{_file_name(key)}.cancelled").touch()

    def is_cancelled(self, key: str) -> bool:
        return (self._requests / f"{_file_name(key)}.cancelled").exists()

    # -- using and removing ------------------------------------------------------------------------

    @contextlib.contextmanager
    def using(self, digest: str) -> Iterator[EnvironmentStamp | None]:
        """Yield the environment's stamp and prevent its removal meanwhile. None if it is not complete."""
        try:
            descriptor = os.open(self.folder_of(digest) / STAMP, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            yield self.find(digest)  # an existing folder: the store never removes it
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield self.find(digest)  # it may have been removed while waiting
        finally:
            os.close(descriptor)

    def mark_used(self, digest: str) -> None:
        """Record that a workspace has just started from the environment."""
        with contextlib.suppress(OSError):
            (self.folder / ".used").mkdir(mode=0o700, exist_ok=True)
            (self.folder / ".used" / digest).touch()

    def used(self, *, since: float) -> list[str]:
        """Return complete environments that were used since a Unix time, latest first."""
        times: dict[str, float] = {}
        for digest in self._digests():
            with contextlib.suppress(OSError):
                times[digest] = (self.folder / ".used" / digest).stat().st_mtime
        recent = sorted((digest for digest, at in times.items() if at >= since), key=lambda d: -times[d])
        return [digest for digest in recent if self.find(digest)]

    def remove(self, digest: str) -> bool:
        """Remove an environment; return False if it is in use. Removing a missing one succeeds."""
        place = self.folder_of(digest)
        if not place.exists():
            return True
        trash = self.folder / f".removing-{secrets.token_hex(8)}"
        try:
            descriptor = os.open(place / STAMP, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # No environment: a running build, or remains for `sweep`.
            return True
        try:
            if not _try_lock(descriptor, fcntl.LOCK_EX) or in_use(place):
                return False
            place.rename(trash)
        finally:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            (self.folder / ".used" / digest).unlink()
        remove_tree(trash)
        return True


def remove_tree(path: Path) -> None:
    """Remove a folder, including read-only folders in it. Follows no links and raises nothing."""
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    for folder, names, _ in os.walk(path):
        for name in names:
            inside = Path(folder, name)
            with contextlib.suppress(OSError):
                if not inside.is_symlink():
                    inside.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def size_kib(folder: Path) -> int:
    """Return the disk usage of a folder in KiB; hard links count once."""
    total, inodes = 0, set()
    stack = [folder]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:
            continue  # it has just been removed
        for entry in entries:
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if facts.st_nlink > 1 and not stat.S_ISDIR(facts.st_mode):
                    if facts.st_ino in inodes:
                        continue
                    inodes.add(facts.st_ino)
                total += facts.st_blocks
                if stat.S_ISDIR(facts.st_mode):
                    stack.append(Path(entry.path))
    return total // 2


def _stamp_of_folder(folder: Folder) -> EnvironmentStamp:
    """Return the stamp of an existing folder; nothing in it is preloaded."""
    return EnvironmentStamp(
        digest=folder.digest,
        place=folder.path,
        lock="",
        python=folder.python,
        python_version=folder.python_version,
        bases=(),
        size_mib=0,
        packages=folder.packages,
        programs=folder.programs,
        cuda=cuda_of("\n".join(f"{package.name}=={package.version}" for package in folder.packages)),
        folder=True,
    )


def _read(path: Path) -> EnvironmentStamp | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return msgspec.json.decode(file.read(STAMP_MAX_BYTES), type=EnvironmentStamp)
    except (OSError, msgspec.MsgspecError):
        return None


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _file_name(key: str) -> str:
    return "".join(char if char.isalnum() or char == "-" else "_" for char in key)[:150]


def _sync_file_system(path: Path) -> None:
    """Flush all data of the file system of `path`. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) < 0:
            number = ctypes.get_errno()
            if number != errno.ENOSYS:
                raise OSError(number, os.strerror(number), str(path))
            os.sync()
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
