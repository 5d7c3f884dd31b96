"""Receives a home from another machine: tracks its received and missing parts until it is complete.

Standard library only. The folder contains `home`, which becomes the home, `manifest` (the records of
`home_stream`, without content) and finally `whole`. Every step can be interrupted at any point and resumes
from the state of the folder.

1. The manifest is received in parts.
2. Content that is in the manifest but not in the folder is requested in parts.
3. The manifest is received again with digests of the files. After a change at the source or a difference
   here, step 1 or 2 is repeated.
4. Folders get their modes and times, everything is flushed to disk, and `whole` is written.
"""

# ruff: noqa: PTH123 - pathlib does not support descriptors

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import json
import os
import stat
import time

import home_copy as copying  # type: ignore[import-not-found,unused-ignore]
import home_stream as stream  # type: ignore[import-not-found,unused-ignore]
import tree  # type: ignore[import-not-found,unused-ignore]
from home_stream import BadStream, Unreadable  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

HOME, MANIFEST, PART, WHOLE = "home", "manifest", "manifest.part", "whole"
BATCH = 2000
MAX_WANTS = 500_000
MAX_ROUNDS = 4
STEP_LIMIT_S = 8.0
_libc = ctypes.CDLL(None, use_errno=True)


class Receiver:
    """The folder `root` that receives a home."""

    def __init__(self, root: str, reserve: int) -> None:
        self.root = os.open(root, tree.FOLDER)
        with contextlib.suppress(FileExistsError):
            os.mkdir(HOME, 0o700, dir_fd=self.root)
        self.home = os.open(HOME, tree.FOLDER, dir_fd=self.root)
        self.room = copying.DiskRoom(self.home, reserve)
        self.rounds = 0
        self._begin_copying()

    def _begin_copying(self) -> None:
        self.writer = copying.HomeWriter(self.home, self.room)
        self.place = 0
        """Byte offset in the manifest up to which everything has arrived."""
        self.done = self.entries_done = self.ahead = 0
        """Bytes and entries up to that offset, and bytes of the current batch."""
        self.checked = self.checked_to = self.differences = 0
        """Byte offset in the manifest up to which content is verified, offset in the next file, and number of
        differences."""
        self.prepared = False

    def _restart(self) -> None:
        """Restart with the manifest. Files that have arrived are kept."""
        self.rounds += 1
        for name in (MANIFEST, PART):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.root)
        self._begin_copying()

    # -- the next requirement -----------------------------------------------------------------------

    def next(self) -> dict[str, Any]:
        """Return the next requirement: `{"need": "manifest" | "files" | "check" | "time" | "nothing", …}`.

        Includes the parameters of the request; `time` means to call again. Idempotent until a stream is
        received.

        Raises `DiskFull`, and `BadStream` if the source keeps changing.
        """
        if self._exists(WHOLE):
            return {"need": "nothing", **self.progress()}
        if self.rounds >= MAX_ROUNDS:
            raise BadStream("the home changes during the copy")
        if not self._exists(MANIFEST):
            return {"need": "manifest", "after": self._last_path(PART), **self.progress()}
        if not self.prepared:
            self._prepare()
        wants, all_seen = self._collect_wants(time.monotonic() + STEP_LIMIT_S)
        if wants or not all_seen:
            return {"need": "files" if wants else "time", "wants": wants, **self.progress()}
        if self.checked < self.size:
            place = {"after": self._path_before(self.checked), "start": self.checked_to}
            return {"need": "check", **place, **self.progress()}
        if self.differences:
            self.place = self.done = self.entries_done = 0
            self.checked = self.checked_to = self.differences = 0
            self.writer.first.clear()
            self.rounds += 1
            return self.next()
        self._finish()
        return {"need": "nothing", **self.progress()}

    def progress(self) -> dict[str, int]:
        """Return the bytes and entries that have arrived and their totals; totals are 0 until known."""
        prepared = self.prepared
        return {
            "bytes": self.done + self.ahead,
            "of_bytes": self.total if prepared else 0,
            "entries": self.entries_done,
            "of_entries": self.count if prepared else 0,
            "left_out": self.left_out if prepared else 0,
            "checked": min(100, self.checked * 100 // max(1, self.size)) if prepared else 0,
        }

    def _prepare(self) -> None:
        """Read the manifest once for totals; check that everything is readable and fits on the disk."""
        self.total = self.count = self.left_out = allocated = 0
        counted: set[str] = set()
        for _, entry in self._entries(0):
            if entry["t"] == "x":
                if entry.get("why") != stream.SPECIAL:
                    raise Unreadable(str(entry["p"]))
                self.left_out += 1
                continue
            self.count += 1
            if entry["t"] == "f" and entry.get("i", "") not in counted:
                self.total += entry["s"]
                allocated += min(entry["s"], int(entry.get("a", entry["s"])))
                if "i" in entry:
                    counted.add(entry["i"])
        self.size = os.stat(MANIFEST, dir_fd=self.root).st_size
        self._prune()
        present_bytes = sum(
            info.st_blocks * 512 for _, _, _, info in stream.walk(self.home) if info is not None
        )
        self.room.require(max(0, allocated - present_bytes), self.count)
        self.prepared = True

    def _prune(self) -> None:
        """Remove entries that are not in the manifest; they are from an earlier one."""
        entries = (
            (stream.names_of(entry["p"]), entry["t"]) for _, entry in self._entries(0) if entry["t"] != "x"
        )
        expected = next(entries, None)
        obsolete: list[str] = []
        inside: list[bytes] | None = None
        for above, _, name, _ in stream.walk(self.home):
            names = [*above, name]
            if inside is not None and names[: len(inside)] == inside:
                continue
            while expected is not None and expected[0] < names:
                expected = next(entries, None)
            if expected is None or expected[0] != names:
                inside = names
                obsolete.append(stream.path_of(names))
        for path in obsolete:
            self.writer.remove(path)
        self.writer.close()

    def _collect_wants(self, until: float) -> tuple[list[list[Any]], bool]:
        """Return the paths and offsets of up to `BATCH` files to request; create folders and links.

        The second value is False if `until` was reached before the end of the manifest or a full batch.
        """
        wants: list[list[Any]] = []
        length = self.ahead = 0
        for end, entry in self._entries(self.place):
            offset = None if entry["t"] == "x" else self.writer.create_entry(entry)
            size = entry["s"] if entry["t"] == "f" and self._is_first(entry) else 0
            if offset is not None:
                self.ahead += max(0, offset)
                length += len(entry["p"])
                if offset != copying.LINK_LATER:
                    wants.append([entry["p"], offset])
                if len(wants) >= BATCH or length > MAX_WANTS:
                    break
            elif wants:
                self.ahead += size
            else:
                self.place = end
                self.done += size
                self.entries_done += entry["t"] != "x"
            if time.monotonic() > until:
                return wants, False
        return wants, True

    def _is_first(self, entry: dict[str, Any]) -> bool:
        return bool(self.writer.first.get(entry.get("i", ""), entry["p"]) == entry["p"])

    # -- receiving streams --------------------------------------------------------------------------------

    def receive(self, part: str, read: Callable[[int], bytes]) -> None:
        """Process one stream as far as it arrives. Raises `DiskFull`, `BadStream` and `OSError`."""
        reader = stream.RecordReader(read)
        {"manifest": self._manifest, "files": self._files, "check": self._check}[part](reader)

    def _manifest(self, reader: Any) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(PART, flags, 0o600, dir_fd=self.root)
        with open(descriptor, "ab", buffering=1 << 16) as out:
            for record, _ in reader.records():
                if record["t"] == "more":
                    break
                if record["t"] == "end":
                    out.flush()
                    os.fsync(out.fileno())
                    os.rename(PART, MANIFEST, src_dir_fd=self.root, dst_dir_fd=self.root)
                    break
                _require_entry(record)
                self.room.consume(200)
                out.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def _files(self, reader: Any) -> None:
        file = -1
        entry: dict[str, Any] = {}
        try:
            for record, data in reader.records():
                kind = record["t"]
                if kind == "f" and file < 0:
                    file, entry = self.writer.begin(record), record
                elif kind == "b" and file >= 0:
                    self.writer.write_piece(file, entry, record, data)
                elif kind == "e" and file >= 0:
                    self.writer.finish_file(file, entry)
                    os.close(file)
                    file = -1
                elif kind == "x":
                    self._restart()
                    return
                elif kind not in ("more", "end"):
                    raise BadStream("invalid record")
        finally:
            if file >= 0:
                os.close(file)

    def _check(self, reader: Any) -> None:
        """Compare each record with the manifest, and each file with the received one."""
        entries = self._entries(self.checked)
        file, position = -1, 0
        entry: dict[str, Any] = {}
        try:
            for record, _ in reader.records():
                kind = record["t"]
                if kind == "more":
                    return
                if kind == "g":
                    if file >= 0 and not self._matches(file, entry, record):
                        os.close(file)
                        file = -1
                        self._record_difference(entry, position)
                    continue
                if kind == "e":
                    if file >= 0:
                        os.close(file)
                        file = -1
                        if self.checked_to < entry["s"]:
                            raise BadStream("a file has no end")
                        self.checked, self.checked_to = position, 0
                    continue
                expected = next(entries, None)
                if kind == "end" and expected is None:
                    return
                if expected is None or _comparable_fields(record) != _comparable_fields(expected[1]):
                    self._restart()
                    return
                position, entry = expected
                if kind != "f":
                    self.checked = position
                    continue
                file = self._open_received(entry)
                if file < 0:
                    self._record_difference(entry, position)
        finally:
            if file >= 0:
                os.close(file)

    def _record_difference(self, entry: dict[str, Any], position: int) -> None:
        self.writer.remove(entry["p"])
        self.differences += 1
        self.checked, self.checked_to = position, 0

    def _open_received(self, entry: dict[str, Any]) -> int:
        """Open the file of a record for reading if its size and time match; else return -1."""
        folder, name = self.writer.place(entry)
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) and (info.st_size, info.st_mtime_ns) == (entry["s"], entry["mt"]):
                return int(stream.open_regular(folder, name))
        except OSError:
            pass
        return -1

    def _matches(self, file: int, entry: dict[str, Any], record: dict[str, Any]) -> bool:
        if record.get("o") != self.checked_to:
            raise BadStream("missing content")
        end = min(entry["s"], self.checked_to + stream.SPAN)
        if stream.digest_of(file, self.checked_to, end) != record.get("g"):
            return False
        self.checked_to = end
        return True

    # -- completion -----------------------------------------------------------------------------------

    def _finish(self) -> None:
        places = array.array("Q")
        before = 0
        for end, entry in self._entries(0):
            if entry["t"] == "d":
                places.append(before)
            before = end
        for place in reversed(places):
            self.writer.finish_folder(next(iter(self._entries(place)))[1])
        self.writer.close()
        if _libc.syncfs(self.home):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        summary = json.dumps(self.progress()).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{WHOLE}.part", flags, 0o600, dir_fd=self.root)
        try:
            os.write(descriptor, summary)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(f"{WHOLE}.part", WHOLE, src_dir_fd=self.root, dst_dir_fd=self.root)
        os.fsync(self.root)

    # -- the manifest ------------------------------------------------------------------------------

    def _entries(self, place: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield records from a byte offset of the manifest, each with the offset of its end."""
        descriptor = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.root)
        with open(descriptor, "rb") as lines:
            lines.seek(place)
            for line in lines:
                place += len(line)
                yield place, json.loads(line)

    def _last_path(self, name: str) -> str:
        """Return the path of the last complete record of a manifest; truncate an incomplete rest."""
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.root)
        except FileNotFoundError:
            return ""
        try:
            size = os.fstat(descriptor).st_size
            length = min(size, 2 * stream.MAX_RECORD)
            tail = os.pread(descriptor, length, size - length)
            complete = tail[: tail.rfind(b"\n") + 1]
            os.ftruncate(descriptor, size - (len(tail) - len(complete)))
            lines = complete.splitlines()
            return str(json.loads(lines[-1])["p"]) if lines else ""
        except (ValueError, KeyError, TypeError):
            os.ftruncate(descriptor, 0)
            return ""
        finally:
            os.close(descriptor)

    def _path_before(self, place: int) -> str:
        """Return the path of the record that ends at this byte offset of the manifest."""
        if not place:
            return ""
        descriptor = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.root)
        try:
            length = min(place, 2 * stream.MAX_RECORD)
            return str(json.loads(os.pread(descriptor, length, place - length).splitlines()[-1])["p"])
        finally:
            os.close(descriptor)

    def _exists(self, name: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self.root, follow_symlinks=False).st_mode)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False


def _require_entry(record: dict[str, Any]) -> None:
    """Raise `BadStream` unless the record is valid in a manifest."""
    kind, path = record["t"], record.get("p")
    if kind not in ("d", "l", "f", "x") or not isinstance(path, str):
        raise BadStream("invalid record")
    stream.names_of(path)
    if kind == "f":
        for name in ("s", "a"):
            if not isinstance(record.get(name), int) or not 0 <= record[name] <= stream.MAX_SIZE:
                raise BadStream("invalid record")
        if not isinstance(record.get("i", ""), str):
            raise BadStream("invalid record")


def _comparable_fields(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that must not change; the allocated size may."""
    return {name: value for name, value in entry.items() if name != "a"}
