"""A home as a stream, and a home restored from one: complete and confined to its folder."""

# ruff: noqa: PTH208 - descriptors

from __future__ import annotations

import base64
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AGENT_FILES = Path(__file__).parents[3] / "provisioning" / "agent" / "files"
sys.path.insert(0, str(AGENT_FILES))
import home_copy  # type: ignore[import-not-found]  # noqa: E402
import home_receive  # type: ignore[import-not-found]  # noqa: E402
import home_stream  # type: ignore[import-not-found]  # noqa: E402
import tree  # type: ignore[import-not-found]  # noqa: E402

sys.path.remove(str(AGENT_FILES))
OLD = 1_500_000_000_123_456_789


def filled(home: Path) -> None:
    """A home with one of every kind of file."""
    home.mkdir()
    (home / "empty").mkdir()
    deep = home / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "text").write_text("hello\n" * 1000)
    (home / "a" / "zeros").write_bytes(bytes(3 << 20))
    (home / "none").touch()
    (home / "secret").write_text("mine")
    (home / "secret").chmod(0o400)
    (home / "unreadable").write_text("still mine")
    (home / "unreadable").chmod(0o000)
    (home / "closed").mkdir()
    (home / "closed" / "inside").write_text("x")
    (home / "closed").chmod(0o555)
    (home / "tool").write_text("#!/bin/sh\n")
    (home / "tool").chmod(0o6755)
    (home / "link").symlink_to("/etc/passwd")
    (home / "dangling").symlink_to("../../nowhere")
    (home / "first name").write_text("one file")
    os.link(home / "first name", home / "second name")
    os.link(home / "first name", home / "a" / "third name")
    with (home / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(64 << 20)
        file.write(b"middle")
        file.truncate(200 << 20)
    os.mkfifo(home / "pipe")
    (home / os.fsdecode(b"b\xff d\n%")).write_text("a strange name")
    os.setxattr(home / "none", "user.colour", b"blue\0")
    for path in (home / "link", home / "empty", home / "none"):
        os.utime(path, ns=(OLD, OLD), follow_symlinks=False)
    os.utime(home / "a", ns=(OLD, OLD))


def test_concurrent_readers_see_the_whole_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    names = {f"file-{number}" for number in range(5)}
    for name in names:
        (home / name).touch()
    served = tree.Tree(str(home))
    with os.scandir(served.root) as other, served.folder([]) as third, os.scandir(third) as more:
        assert next(other).name in names and next(more).name in names
        assert {row["id"] for row in served.listing("", offset=0, limit=10)["entries"]} == names
        assert {name for _, _, name, _ in served.walk("")} == names
        assert {name.decode() for _, _, name, _ in home_stream.walk(served.root)} == names
    os.close(served.root)


def seen(home: Path) -> dict[bytes, Any]:
    """Return everything that a copy must preserve."""
    found: dict[bytes, Any] = {}
    inodes: dict[int, bytes] = {}
    for folder, folders, files in os.walk(os.fsencode(home)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                continue
            facts: list[Any] = [kind, status.st_mtime_ns]
            if kind == stat.S_IFLNK:
                facts.append(Path(os.fsdecode(path)).readlink())
            else:
                facts += [status.st_mode & 0o777, os.listxattr(path)]
            if kind == stat.S_IFREG:
                os.chmod(path, 0o600)  # noqa: PTH101
                facts += [
                    Path(os.fsdecode(path)).read_bytes() if status.st_size < 9 << 20 else status.st_size
                ]
                os.chmod(path, status.st_mode & 0o777)  # noqa: PTH101
                if status.st_nlink > 1:
                    facts.append(min(inodes.setdefault(status.st_ino, path), path)[len(os.fsencode(home)) :])
            found[path[len(os.fsencode(home)) :]] = facts
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    found = tmp_path / "home"
    filled(found)
    yield found
    for path in tmp_path.rglob("closed"):
        path.chmod(0o755)


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def packed(home: Path) -> bytes:
    out = io.BytesIO()
    home_stream.write_home(opened(home), out)
    return out.getvalue()


def unpack(data: bytes, target: Path, reserve: int = 0) -> dict[str, int]:
    target.mkdir(exist_ok=True)
    root = opened(target)
    found: dict[str, int] = home_copy.read_home(
        io.BytesIO(data).read, root, home_copy.DiskRoom(root, reserve)
    )
    return found


def test_stream_contains_the_whole_home(home: Path, tmp_path: Path) -> None:
    before = seen(home)
    out = io.BytesIO()
    counts = home_stream.write_home(opened(home), out)
    assert (counts["special"], counts["unreadable"]) == (1, 0)
    assert len(out.getvalue()) < 2 << 20, "holes and zeros are not sent"
    found = unpack(out.getvalue(), tmp_path / "copy")
    assert found == {"entries": counts["entries"], "bytes": counts["bytes"]}
    assert seen(tmp_path / "copy") == before == seen(home)
    copy = tmp_path / "copy"
    assert not (copy / "pipe").exists()
    assert (copy / "tool").stat().st_mode & 0o7777 == 0o755
    assert (copy / "sparse").stat().st_blocks * 512 < 1 << 20
    assert os.getxattr(copy / "none", "user.colour") == b"blue\0"


@pytest.mark.parametrize("cut", [10, 200, 3000, -1])
def test_truncated_stream_is_refused(home: Path, tmp_path: Path, cut: int) -> None:
    with pytest.raises(home_stream.BadStream):
        unpack(packed(home)[:cut], tmp_path / "copy")


def test_changed_byte_fails_the_checksum(home: Path, tmp_path: Path) -> None:
    data = bytearray(packed(home))
    data[data.index(b"hello")] ^= 1
    with pytest.raises(home_stream.BadStream, match="checksum"):
        unpack(bytes(data), tmp_path / "copy")


def stream_of(*records: dict[str, Any], data: bytes = b"") -> bytes:
    out = io.BytesIO()
    writer = home_stream.RecordWriter(out)
    for record in records:
        writer.put(record, data if record["t"] == "b" else b"")
    return out.getvalue()


FILE = {"t": "f", "s": 4, "a": 4, "m": 0o644, "mt": OLD, "o": 0}


@pytest.mark.parametrize(
    "path",
    [
        "../out",
        "/out",
        "a/../../out",
        "",
        ".",
        "..",
        "a//b",
        "%2e%2e/out",
        "a%2Fb",
        "a%00b",
        "x" * 300,
        "a/" * 300 + "b",
    ],
)
def test_paths_outside_the_target_are_refused(tmp_path: Path, path: str) -> None:
    kinds = (
        {**FILE, "p": path},
        {"t": "d", "p": path, "m": 0o755, "mt": OLD},
        {"t": "l", "p": path, "mt": OLD, "to": base64.b64encode(b"/etc").decode()},
    )
    (tmp_path / "out").mkdir()
    for record in kinds:
        with pytest.raises(home_stream.BadStream):
            unpack(
                stream_of(record, {"t": "b", "o": 0}, {"t": "e"}, {"t": "end"}, data=b"evil"), tmp_path / "in"
            )
    assert os.listdir(tmp_path / "out") == os.listdir(tmp_path / "in") == []
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_links_are_not_followed_when_writing(tmp_path: Path) -> None:
    """Neither a link in the stream nor one swapped in during the transfer."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    link = {"t": "l", "p": "way", "mt": OLD, "to": base64.b64encode(os.fsencode(outside)).decode()}
    records = (link, {**FILE, "p": "way/file"}, {"t": "b", "o": 0}, {"t": "e"}, {"t": "end"})
    target = tmp_path / "in"
    with pytest.raises(home_stream.BadStream):  # for the end without a digest
        unpack(stream_of(*records, data=b"evil"), target)
    assert (outside / "file").read_text() == "kept" and not (target / "way").is_symlink()
    (target / "name").symlink_to(outside / "file")
    with pytest.raises(home_stream.BadStream):
        unpack(stream_of({**FILE, "p": "name"}, *records[2:], data=b"evil"), target)
    assert (outside / "file").read_text() == "kept"
    assert (target / "name").read_text() == "evil" and not (target / "name").is_symlink()


def test_hard_link_to_another_outside_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    target = tmp_path / "in"
    target.mkdir()
    (target / "first").symlink_to(tmp_path / "secret")
    records = ({**FILE, "p": "first", "i": "1"}, {**FILE, "p": "second", "i": "1", "same": 1}, {"t": "end"})
    with pytest.raises(home_stream.BadStream):
        unpack(stream_of(records[1], records[0]), target)
    assert not (target / "second").exists()


@pytest.mark.parametrize(
    "record",
    [
        {"t": "f"},
        {**FILE, "p": "a", "s": -1},
        {**FILE, "p": "a", "s": "x"},
        {**FILE, "p": "a", "s": 1 << 60},
        {**FILE, "p": "a", "o": 1},
        {"t": "d", "p": "a", "m": 1 << 40, "mt": OLD},
        {"t": "l", "p": "a", "mt": OLD, "to": "?"},
        {"t": "what", "p": "a"},
        {"t": ["f"]},
        {"t": "b", "o": 0},
    ],
)
def test_invalid_records_are_refused(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(home_stream.BadStream):
        unpack(stream_of(record, {"t": "b", "o": 0}, {"t": "e"}, {"t": "end"}, data=b"data"), tmp_path / "in")


def test_data_longer_than_announced_is_refused(tmp_path: Path) -> None:
    records = ({**FILE, "p": "a"}, {"t": "b", "o": 2}, {"t": "e"}, {"t": "end"})
    with pytest.raises(home_stream.BadStream):
        unpack(stream_of(*records, data=b"data"), tmp_path / "in")


def test_record_lengths_are_limited(tmp_path: Path) -> None:
    for length in (b"\xff\xff\xff\xff", home_stream.LENGTH.pack(7) + b"[[[[[[["):
        with pytest.raises(home_stream.BadStream):
            unpack(home_stream.MAGIC + length + b"{}", tmp_path / "in")
    piece = json.dumps({"t": "b", "o": 0, "n": 1 << 40}).encode()
    with pytest.raises(home_stream.BadStream):
        unpack(home_stream.MAGIC + home_stream.LENGTH.pack(len(piece)) + piece, tmp_path / "in")


def test_full_disk_reports_the_needed_space(home: Path, tmp_path: Path) -> None:
    with pytest.raises(home_copy.DiskFull) as refused:
        unpack(packed(home), tmp_path / "copy", reserve=1 << 60)
    assert refused.value.free == 0 and refused.value.needed > 0


# --- in parts -------------------------------------------------------------------------------------


class Copy:
    """A home copied in parts, each of which may be cut off after some bytes."""

    def __init__(self, home: Path, target: Path) -> None:
        self.home, self.target = home, target
        target.mkdir(exist_ok=True)
        self.receiver = home_receive.Receiver(str(target), 0)
        self.asked: list[str] = []
        self.sent = 0

    def recreate_receiver(self) -> None:
        """Simulate SIGKILL of the receiver."""
        self.receiver = home_receive.Receiver(str(self.target), 0)

    def step(self, *, limit_s: float = 60.0, cut: int | None = None) -> str:
        need = self.receiver.next()
        part = str(need["need"])
        self.asked.append(part)
        if part == "nothing":
            return part
        out = io.BytesIO()
        root = opened(self.home)
        if part == "files":
            home_stream.write_files(root, [tuple(want) for want in need["wants"]], out, limit_s=limit_s)
        elif part == "check":
            home_stream.write_check(root, out, after=need["after"], start=need["start"], limit_s=limit_s)
        else:
            home_stream.write_manifest(root, out, after=need["after"], limit_s=limit_s)
        os.close(root)
        data = io.BytesIO(out.getvalue()[:cut])
        self.sent += len(data.getvalue())
        try:
            self.receiver.receive(part, data.read)
        except home_stream.BadStream as error:
            if cut is None:
                raise
            assert "truncated" in str(error)
        return part

    def to_the_end(self, limit: int = 5000, **how: Any) -> None:
        for _ in range(limit):
            if self.step(**how) == "nothing":
                return
        raise AssertionError(f"it never ends: {self.asked[-5:]} {self.receiver.progress()}")


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Copy:
    return Copy(home, tmp_path / "moving")


def test_home_is_copied_in_four_steps(copy: Copy, home: Path) -> None:
    before = seen(home)
    copy.to_the_end()
    assert copy.asked == ["manifest", "files", "check", "nothing"]
    assert seen(copy.target / "home") == before
    progress = json.loads((copy.target / "whole").read_text())
    assert progress["bytes"] == progress["of_bytes"] > 200 << 20
    assert progress["entries"] == progress["of_entries"]
    assert progress["left_out"] == 1


def test_expired_time_limit_still_makes_progress(copy: Copy, home: Path) -> None:
    before = seen(home)
    copy.to_the_end(limit_s=-1.0)
    assert len(copy.asked) > 40
    assert seen(copy.target / "home") == before


@pytest.mark.parametrize("kills", [False, True])
def test_interrupted_copy_resumes_anywhere(copy: Copy, home: Path, kills: bool) -> None:
    before = seen(home)
    (home / "large").write_bytes(os.urandom(5 << 20))
    os.utime(home / "large", ns=(OLD, OLD))
    before = seen(home)
    lengths = [10, 300, 900, 2_000, 30_000, 70_000, 500_000, 1_500_000]
    for round_ in range(40):
        if copy.step(cut=lengths[round_ % len(lengths)]) == "nothing":
            break
        if kills:
            copy.recreate_receiver()
    copy.to_the_end()
    assert seen(copy.target / "home") == before
    assert copy.sent < 12 << 20, "what is there is not sent again and again"


def test_large_file_is_compared_in_chunks(copy: Copy, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_stream, "SPAN", 1 << 16)
    (home / "large").write_bytes(os.urandom(10 << 16) + b"end")
    (home / "sparse").unlink()
    before = seen(home)
    while copy.step() != "files":
        pass
    checks = 0
    (copy.target / "home" / "large").touch()
    when = (home / "large").stat().st_mtime_ns
    with (copy.target / "home" / "large").open("r+b") as file:
        file.seek(7 << 16)
        file.write(b"other")
    os.utime(copy.target / "home" / "large", ns=(when, when))
    for _ in range(1000):
        part = copy.step(limit_s=-1.0) if copy.asked[-1] != "nothing" else "nothing"
        checks += part == "check"
        if part == "nothing":
            break
    assert checks > 15
    assert seen(copy.target / "home") == before


def test_bytes_lost_on_disk_are_copied_again(copy: Copy, home: Path) -> None:
    before = seen(home)
    while copy.step() != "files":
        pass
    path = copy.target / "home" / "a" / "b" / "c" / "text"
    when = path.stat()
    path.write_bytes(b"HELLO\n" * 1000)
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    copy.to_the_end()
    assert copy.asked.count("check") >= 2
    assert seen(copy.target / "home") == before


def test_changes_during_the_copy_are_copied(copy: Copy, home: Path) -> None:
    while copy.step() != "files":
        pass
    (home / "none").write_text("something now")
    (home / "second name").unlink()
    (home / "new").mkdir()
    before = seen(home)
    copy.to_the_end()
    assert seen(copy.target / "home") == before


def test_constantly_changing_files_are_abandoned(copy: Copy, home: Path) -> None:
    with pytest.raises(home_stream.BadStream, match="changes"):
        for number in range(100):
            if copy.step() == "files":
                (home / "none").write_text(str(number))


def test_unreadable_path_fails_the_copy(copy: Copy, home: Path) -> None:
    path = home
    for _ in range(210):
        path = path / "d"
        path.mkdir()
    with pytest.raises(home_receive.Unreadable):
        copy.to_the_end()
    assert not (copy.target / "whole").exists()


def test_missing_disk_space_prevents_the_copy(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.step()
    monkeypatch.setattr(home_copy.DiskRoom, "free", lambda _: 1000)
    with pytest.raises(home_copy.DiskFull) as refused:
        copy.step()
    assert (refused.value.free, refused.value.needed > 1000) == (1000, True)
    monkeypatch.undo()
    copy.to_the_end()


def test_link_in_place_of_the_target_is_not_followed(copy: Copy, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    copy.step()
    (copy.target / "home" / "a").symlink_to(outside)
    (copy.target / "home" / "none").symlink_to(outside / "none")
    copy.to_the_end()
    assert os.listdir(outside) == []


@pytest.mark.thorough("a large home")
def test_memory_use_does_not_depend_on_home_size(tmp_path: Path) -> None:
    """Half a GiB through processes with 150 MiB of memory."""
    home = tmp_path / "home"
    home.mkdir()
    piece = os.urandom(1 << 20)
    with (home / "large").open("wb") as file:
        for _ in range(512):
            file.write(piece)
    for number in range(3000):
        (home / f"{number}").write_bytes(b"x" * 100)
    code = f"""
import os, resource, sys, threading
sys.path.insert(0, {str(AGENT_FILES)!r})
import home_stream, home_copy
resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20))
os.mkdir(sys.argv[2])
source, target = (os.open(each, os.O_RDONLY) for each in sys.argv[1:])
read, write = os.pipe()
out = os.fdopen(write, "wb")
thread = threading.Thread(target=lambda: (home_stream.write_home(source, out), out.close()))
thread.start()
got = os.fdopen(read, "rb")
print(home_copy.read_home(got.read, target, home_copy.DiskRoom(target, 0))["entries"])
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(home), str(tmp_path / "copy")],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == "3001\n", done.stderr
    assert (tmp_path / "copy" / "large").stat().st_size == 512 << 20
