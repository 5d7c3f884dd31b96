"""Archives of a home in a separate folder, and homes restored from them. Standard library only.

The folder `store` has a file `<archive>.home` per archive: a header of `HEADER` bytes (`MAGIC`, JSON,
newlines), then the output of `home_stream.write_home`, compressed by zlib. The file gets this name only after
it has been read back completely from disk. Before that it is `<archive>.part`, which the next server deletes.
A home is restored to `restoring/home`; `restoring/whole` contains the job's ID once it is complete.

One job runs at a time, in a thread. A repeated request for the same job returns its progress. After a kill
the job starts from the beginning; a finished job reports its result.
"""

# ruff: noqa: PTH208 - pathlib does not support descriptors

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import stat
import threading
import zlib

import home_copy as copying  # type: ignore[import-not-found,unused-ignore]
import home_stream as stream  # type: ignore[import-not-found,unused-ignore]
import tree  # type: ignore[import-not-found,unused-ignore]
from home_stream import BadStream  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is slow to import
    from collections.abc import Callable
    from typing import Any

MAGIC = b"berth-archive 1\n"
HEADER = 4096
LEVEL = 1
"""zlib level: three times as fast as the default, and nearly as small."""
PIECE = 1 << 18
SUFFIX, PART = ".home", ".part"
RESTORING, HOME, WHOLE = "restoring", "home", "whole"
MAX_WHOLE = 200
WRITING, CHECKING, READING = "writing", "checking", "reading"
_ID = re.compile(r"[0-9a-f]{32}")
_libc = ctypes.CDLL(None, use_errno=True)


class Archives:
    """Archives of one home: `home` is its open folder, `store` the path of the archives."""

    def __init__(self, home: int, store: str, reserve: int) -> None:
        self.home = home
        self.store = os.open(store, tree.FOLDER)
        self.reserve = reserve
        self._lock = threading.Lock()
        self._job: _Job | None = None
        for name in os.listdir(self.store):
            if name.endswith(PART):
                os.unlink(name, dir_fd=self.store)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the progress of a job; start it unless it is running.

        `{"state": "working", "phase", "bytes"}`, or `{"state": "done", "size", "stream", "home_bytes",
        "entries", "left_out"}`, all but the last two in bytes. Raises a failed job's error once; then the job
        can be started again.
        """
        job, archive = str(request["job"]), str(request["archive"])
        if not _ID.fullmatch(archive):
            raise ValueError(archive)
        work: Callable[[_Job], dict[str, int]]
        match request["do"]:
            case "archive":
                max_bytes = int(request["most_bytes"])
                find_result, work = self._archive_result, lambda job: self._make(job, archive, max_bytes)
            case "restore":
                find_result, work = self._restore_result, lambda job: self._restore(job, archive)
            case other:
                raise ValueError(other)
        with self._lock:
            if self._job is not None and self._job.id != job:
                if self._job.working:
                    raise tree.FileRequestRefused("busy")
                self._job = None
            if self._job is None:
                result = find_result(job, archive)
                if result is not None:
                    return {"state": "done", **result}
                self._job = _Job(job, work)
            if not self._job.working and self._job.failure is not None:
                failure, self._job = self._job.failure, None
                raise failure
            return self._job.status()

    @property
    def is_working(self) -> bool:
        with self._lock:
            return self._job is not None and self._job.working

    # -- creating an archive ------------------------------------------------------------------------

    def _archive_result(self, job: str, archive: str) -> dict[str, int] | None:
        try:
            file = os.open(archive + SUFFIX, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.store)
        except FileNotFoundError:
            return None
        try:
            return _header_of(file)
        finally:
            os.close(file)

    def _make(self, job: _Job, archive: str, max_bytes: int) -> dict[str, int]:
        part = archive + PART
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(part, flags, 0o600, dir_fd=self.store)
        try:
            os.lseek(file, HEADER, os.SEEK_SET)
            out = _ArchiveWriter(file, copying.DiskRoom(self.store, self.reserve), max_bytes - HEADER, job)
            counts = stream.write_home(self.home, out, strict=True)
            out.close()
            os.fsync(file)
            header = {
                "size": HEADER + out.written,
                "stream": job.bytes,
                "home_bytes": counts["bytes"],
                "entries": counts["entries"],
                "left_out": counts[stream.SPECIAL],
            }
            job.begin(CHECKING)
            os.lseek(file, HEADER, os.SEEK_SET)
            stream.check_home(_ArchiveReader(file, job).read)
            os.pwrite(file, (MAGIC + json.dumps(header).encode()).ljust(HEADER, b"\n"), 0)
            os.fsync(file)
            os.rename(part, archive + SUFFIX, src_dir_fd=self.store, dst_dir_fd=self.store)
            os.fsync(self.store)
        finally:
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=self.store)
        return header

    # -- restoring a home ----------------------------------------------------------------------------

    def _restore_result(self, job: str, archive: str) -> dict[str, int] | None:
        """Return the job's result from before this server started; None if it had not finished."""
        try:
            with self._restoring_folder() as folder:
                file = os.open(WHOLE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    finished_job = os.read(file, MAX_WHOLE)
                finally:
                    os.close(file)
        except OSError:
            return None
        return self._archive_result(job, archive) if finished_job == job.encode() else None

    def _restore(self, job: _Job, archive: str) -> dict[str, int]:
        try:
            source = os.open(archive + SUFFIX, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.store)
        except FileNotFoundError as error:
            raise tree.FileRequestRefused("not_found") from error
        try:
            header = _header_of(source)
            job.begin(READING)
            copying.remove(self.store, RESTORING)
            os.mkdir(RESTORING, 0o700, dir_fd=self.store)
            with self._restoring_folder() as folder:
                os.mkdir(HOME, 0o700, dir_fd=folder)
                home = os.open(HOME, tree.FOLDER, dir_fd=folder)
                try:
                    os.lseek(source, HEADER, os.SEEK_SET)
                    room = copying.DiskRoom(home, self.reserve)
                    copying.read_home(_ArchiveReader(source, job).read, home, room)
                    if _libc.syncfs(home):
                        number = ctypes.get_errno()
                        raise OSError(number, os.strerror(number))
                finally:
                    os.close(home)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                marker = os.open(f"{WHOLE}.part", flags, 0o600, dir_fd=folder)
                try:
                    os.write(marker, job.id.encode())
                    os.fsync(marker)
                finally:
                    os.close(marker)
                os.rename(f"{WHOLE}.part", WHOLE, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                copying.remove(self.store, RESTORING)
            raise
        finally:
            os.close(source)
        return header

    @contextlib.contextmanager
    def _restoring_folder(self) -> Any:
        folder = os.open(RESTORING, tree.FOLDER, dir_fd=self.store)
        try:
            yield folder
        finally:
            os.close(folder)


class _Job:
    """A job that runs in a thread."""

    def __init__(self, name: str, work: Callable[[_Job], dict[str, int]]) -> None:
        self.id = name
        self.phase, self.bytes = WRITING, 0
        self.working = True
        self.failure: Exception | None = None
        self._result: dict[str, int] = {}
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def begin(self, phase: str) -> None:
        self.phase, self.bytes = phase, 0

    def status(self) -> dict[str, Any]:
        if not self._result:
            return {"state": "working", "phase": self.phase, "bytes": self.bytes}
        return {"state": "done", **self._result}

    def _run(self, work: Callable[[_Job], dict[str, int]]) -> None:
        try:
            self._result = work(self)
        except Exception as error:  # raised by the next request
            self.failure = error
        finally:
            self.working = False


class _ArchiveWriter:
    """Compresses the bytes written to it into a file."""

    def __init__(self, file: int, room: Any, max_bytes: int, job: _Job) -> None:
        self._file, self._room, self._max_bytes, self._job = file, room, max_bytes, job
        self._packer = zlib.compressobj(LEVEL)
        self.written = 0

    def write(self, data: bytes) -> None:
        self._job.bytes += len(data)
        self._put(self._packer.compress(data))

    def close(self) -> None:
        self._put(self._packer.flush())

    def _put(self, data: bytes) -> None:
        if not data:
            return
        self.written += len(data)
        if self.written > self._max_bytes:
            raise tree.FileRequestRefused("archives_full")
        self._room.consume(len(data))
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]


class _ArchiveReader:
    """Reads the output of `_ArchiveWriter`, with memory limited to the requested size."""

    def __init__(self, file: int, job: _Job) -> None:
        self._file, self._job = file, job
        self._unpacker = zlib.decompressobj()

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes; none at the end. Raises `BadStream`."""
        while not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail or os.read(self._file, PIECE)
            if not packed:
                break
            try:
                data = self._unpacker.decompress(packed, count)
            except zlib.error as error:
                raise BadStream("checksum mismatch") from error
            if data:
                self._job.bytes += len(data)
                return data
        return b""


def _header_of(file: int) -> dict[str, int]:
    """Parse an archive's header. Raises `BadStream`."""
    data = os.pread(file, HEADER, 0)
    if not stat.S_ISREG(os.fstat(file).st_mode) or not data.startswith(MAGIC):
        raise BadStream("not an archive")
    try:
        header = json.loads(data[len(MAGIC) :])
        names = ("size", "stream", "home_bytes", "entries", "left_out")
        return {name: int(header[name]) for name in names}
    except (ValueError, KeyError, TypeError) as error:
        raise BadStream("not an archive") from error
