"""`berth cp -r`: folders in both directions, with the process that serves home files on a node."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal.cli.client.transport import Transport
from portal.workspaces.gateway.file_tickets import PREFIX
from portal.workspaces.home_files import services
from provisioning.service.environ import ROOT
from tests.factories import WorkspaceFactory

SERVER = ROOT / "provisioning" / "agent" / "files" / "server.py"
MANY = 1 << 40
unpacks = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="`berth cp -r` unpacks with Python 3.11.4 or later"
)


class BrokenConnection(httpx.BaseTransport):
    """A connection to the node that breaks during a transfer, after half of file number `puts`."""

    puts = 0
    get_bytes = 0
    forged = b""

    def __init__(self, way: httpx.BaseTransport) -> None:
        self.way = way

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT" and BrokenConnection.puts:
            BrokenConnection.puts -= 1
            if not BrokenConnection.puts:
                raise httpx.WriteError("cut off", request=request)
        if request.method == "GET" and BrokenConnection.forged:
            return httpx.Response(200, content=BrokenConnection.forged)
        answer = self.way.handle_request(request)
        if request.method == "GET" and BrokenConnection.get_bytes:
            return httpx.Response(200, stream=_Half(answer, BrokenConnection.get_bytes))
        return answer


class _Half(httpx.SyncByteStream):
    def __init__(self, answer: httpx.Response, size: int) -> None:
        self.answer, self.size = answer, size

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.answer.iter_raw(512):
            if self.size <= 0:
                raise httpx.ReadError("cut off")
            self.size -= len(piece)
            yield piece

    def close(self) -> None:
        self.answer.close()


@pytest.fixture
def home(bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of bob's workspace, served as on a node."""
    WorkspaceFactory(owner=bob, team=team, name="mine")
    folder = Path(tempfile.mkdtemp(prefix="berth-cp-"))
    root = folder / "home"
    root.mkdir()
    sockets = {}
    for name in ("app", "control"):
        sockets[name] = socket.socket(socket.AF_UNIX)
        sockets[name].bind(str(folder / name))
        sockets[name].listen()
    descriptors = [each.fileno() for each in sockets.values()]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", SERVER, root, *map(str, descriptors), "0"], pass_fds=descriptors
    )

    def ask(actor: Any, workspace: Any, do: str, **given: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(folder / "control"))
            asking.sendall(json.dumps({"do": do, **given}).encode() + b"\n")
            answer = json.loads(asking.makefile().readline())
        if "refused" in answer:
            raise services.refusal(answer["refused"]["code"], answer["refused"]["name"])
        return answer["ok"]

    def transfer(actor: Any, workspace: Any, lifetime_s: int, **given: Any) -> str:
        ticket = secrets.token_urlsafe(32)
        digest = hashlib.sha256(ticket.encode()).hexdigest()
        ask(actor, workspace, "grant", digest=digest, lifetime_s=lifetime_s, most_bytes=MANY, **given)
        return f"http://home{PREFIX}{ticket}"

    plain = Transport.transfer

    def over(transport: Transport, *given: Any, **more: Any) -> AbstractContextManager[httpx.Response]:
        transport._transport = BrokenConnection(httpx.HTTPTransport(uds=str(folder / "app")))
        return plain(transport, *given, **more)

    monkeypatch.setattr(services, "_ask", ask)
    monkeypatch.setattr(services, "_transfer", transfer)
    monkeypatch.setattr(Transport, "transfer", over)
    monkeypatch.setattr(BrokenConnection, "puts", 0)
    monkeypatch.setattr(BrokenConnection, "get_bytes", 0)
    monkeypatch.setattr(BrokenConnection, "forged", b"")
    yield root
    process.kill()
    process.wait()
    for each in sockets.values():
        each.close()
    shutil.rmtree(folder)


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local project folder: files, an empty folder, unusual names, symlinks that lead out of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project/data/empty").mkdir(parents=True)
    (tmp_path / "project/run.sh").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "project/data/100%").write_bytes(b"all")
    (tmp_path / "project/data/zweiter Tag\n\x1b").write_bytes(b"")
    (tmp_path / "project" / os.fsdecode(b"\xff")).write_bytes(b"no text")
    (tmp_path / "project/secret").symlink_to("/etc/passwd")
    (tmp_path / "project/up").symlink_to("..")
    os.mkfifo(tmp_path / "project/pipe")
    return tmp_path


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """All entries below a folder; None for folders."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink() and not path.is_fifo()
    }


@unpacks
def test_folder_is_copied_in_both_directions(as_bob: Any, home: Path, here: Path) -> None:
    done = as_bob("cp", "-r", "project", "mine:", "--json")
    assert done.code == 0, done.err
    left_out = ["project/pipe", "project/secret", "project/up"]
    assert done.json == {
        "from": ["project"], "to": "", "files": 4, "size_bytes": 20, "left_out": left_out,
    }  # fmt: skip
    assert tree_of(home / "project") == tree_of(here / "project")
    assert not any(path.is_symlink() for path in home.rglob("*"))
    # Symlinks in the home are not fetched.
    (home / "project/out").symlink_to("/etc")
    (home / "project/in").symlink_to("data")
    (home / "project/run.sh").chmod(0o4755)
    done = as_bob("cp", "-r", "mine:project", "back", "--json")
    assert done.code == 0, done.err
    assert (done.json["files"], done.json["left_out"]) == (4, ["in", "out"])
    assert tree_of(here / "back") == tree_of(here / "project")
    assert not any(path.is_symlink() for path in (here / "back").rglob("*"))
    assert (here / "back/run.sh").stat().st_mode & 0o7777 == 0o755
    quiet = as_bob("cp", "-r", "mine:project", "again", "--quiet")
    assert (quiet.out, quiet.err) == ("again: 4 files, 20 bytes\n", "")
    assert "in, out" in as_bob("cp", "-r", "mine:project", "third").err


@unpacks
def test_destination_rules_match_cp(as_bob: Any, home: Path, here: Path) -> None:
    (home / "data").mkdir()
    assert as_bob("cp", "-r", "project/data", "mine:data").code == 0
    assert as_bob("cp", "-r", "project/data", "mine:new").out.startswith("mine:new: 2 files, ")
    assert as_bob("cp", "-r", "project/data/.", "mine:data").code == 0
    assert tree_of(home / "new") == tree_of(home / "data/data") == tree_of(here / "project/data")
    assert (home / "data/100%").read_bytes() == b"all"
    assert as_bob("cp", "-r", "project/data", "mine:no/such").code == 5
    assert as_bob("cp", "-r", "project/data", "project/run.sh", "mine:none").code == 2
    assert as_bob("cp", "-r", "project/run.sh", "mine:data").code == 0
    assert (home / "data/run.sh").exists()
    # The whole home, and a single file.
    (here / "got").mkdir()
    assert as_bob("cp", "-r", "mine:", "got").code == 0
    assert tree_of(here / "got/home") == tree_of(home)
    assert as_bob("cp", "-r", "mine:data/run.sh", "got").code == 0
    assert (here / "got/run.sh").exists()
    assert as_bob("cp", "-r", "--as", "tar", "mine:data", "got").code == 2
    refused = as_bob("cp", "project", "mine:")
    assert refused.code == 2 and "berth cp -r" in refused.err


@unpacks
def test_existing_files_are_replaced_only_with_force(as_bob: Any, home: Path, here: Path) -> None:
    assert as_bob("cp", "-r", "project", "mine:").out == "mine: 4 files, 20 bytes\n"
    (home / "project/run.sh").write_text("newer")
    (home / "project/kept").write_text("kept")
    shutil.rmtree(home / "project/data")
    refused = as_bob("cp", "-r", "project", "mine:")
    assert refused.code == 2 and "--force" in refused.err
    assert not (home / "project/data").exists()
    assert as_bob("cp", "-r", "-f", "project", "mine:").code == 0
    assert tree_of(home / "project") == {**tree_of(here / "project"), "kept": b"kept"}

    (here / "got/project").mkdir(parents=True)
    (here / "got/project/run.sh").write_text("newer")
    (here / "got/project/mine").write_text("mine")
    assert as_bob("cp", "-r", "mine:project", "got").code == 2
    assert (here / "got/project/run.sh").read_text() == "newer"
    assert as_bob("cp", "-r", "-f", "mine:project", "got").code == 0
    assert tree_of(here / "got/project") == {**tree_of(home / "project"), "mine": b"mine"}


@unpacks
def test_files_never_replace_folders_nor_folders_files(as_bob: Any, home: Path, here: Path) -> None:
    (home / "project").write_text("a file")
    for force in ((), ("-f",)):
        refused = as_bob("cp", "-r", "project", "mine:", *force)
        assert refused.code == 2 and "a folder" in refused.err
    (home / "project").unlink()
    (home / "project/run.sh").mkdir(parents=True)
    refused = as_bob("cp", "-r", "-f", "project", "mine:")
    assert refused.code == 2 and "a folder" in refused.err
    assert list((home / "project").iterdir()) == [home / "project/run.sh"]
    # Nor locally; and no local symlink is followed.
    before = tree_of(here)
    assert as_bob("cp", "-r", "-f", "mine:project", "project/run.sh").code == 2
    assert as_bob("cp", "-r", "-f", "mine:project", ".").code == 2
    (here / "got").mkdir()
    (here / "got/project").symlink_to(here / "project")
    assert as_bob("cp", "-r", "-f", "mine:project", "got").code == 2
    assert {name: data for name, data in tree_of(here).items() if name != "got"} == before


def test_interrupted_upload_reports_progress_and_can_be_repeated(
    as_bob: Any, home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokenConnection, "puts", 3)
    done = as_bob("cp", "-r", "project", "mine:")
    assert done.code == 4 and "2 of 4 files were uploaded and are kept." in done.err
    assert len([data for data in tree_of(home / "project").values() if data is not None]) == 2
    assert as_bob("cp", "-r", "-f", "project", "mine:").code == 0
    assert tree_of(home / "project") == tree_of(here / "project")


@unpacks
def test_interrupted_download_leaves_no_partial_files(
    as_bob: Any, home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "much").mkdir()
    for name in "abc":
        (home / "much" / name).write_bytes(os.urandom(100_000))
    monkeypatch.setattr(BrokenConnection, "get_bytes", 150_000)
    before = sorted(here.iterdir())
    done = as_bob("cp", "-r", "mine:much", "got")
    assert done.code == 4, done
    assert sorted(here.iterdir()) == before
    # Also after the archive's last entry: something may be missing.
    monkeypatch.setattr(BrokenConnection, "get_bytes", 305_000)
    assert as_bob("cp", "-r", "mine:much", "got").code == 4
    assert sorted(here.iterdir()) == before


@unpacks
@pytest.mark.parametrize("name", ["t/../../evil", "t//evil", "t/a/../../../evil"])
def test_malicious_archive_cannot_write_outside_the_target(
    as_bob: Any, home: Path, here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (home / "t").mkdir()
    (here / "in").mkdir()
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE):
            entry = tarfile.TarInfo(f"t/special-{kind.decode()}")
            entry.type, entry.linkname = kind, str(here / "in")
            archive.addfile(entry)
        archive.addfile(tarfile.TarInfo("t/special-2/through"))
        archive.addfile(tarfile.TarInfo(name))
    monkeypatch.setattr(BrokenConnection, "forged", made.getvalue())
    monkeypatch.chdir(here / "in")
    done = as_bob("cp", "-r", "mine:t", "got")
    # An absolute name becomes relative to the folder.
    assert done.code == (0 if "//" in name else 1), done
    assert not list(here.glob("evil")) and not (here / "in/evil").exists() and not Path("/evil").exists()
    assert {path.name for path in (here / "in").iterdir()} <= {"got"}
    assert not any(path.is_symlink() or path.is_char_device() for path in (here / "in").rglob("*"))


@unpacks
def test_unreadable_files_are_reported(
    as_bob: Any, home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert as_bob("cp", "-r", "nothing", "mine:").code == 2
    monkeypatch.setattr("portal.cli.copying.os.access", lambda path, _: Path(path).name != "100%")
    refused = as_bob("cp", "-r", "project", "mine:")
    assert refused.code == 2 and "project/data/100% cannot be read" in refused.err
    assert list(home.iterdir()) == []
    # Unreadable files are named, and the rest is copied.
    deep = home / "deep" / "/".join("d" * 201)
    deep.mkdir(parents=True)
    (home / "deep/file").write_text("x")
    done = as_bob("cp", "-r", "mine:deep", "got")
    assert done.code == 1 and "Not readable in the workspace" in done.err and "d/d/d" in done.err
    assert (here / "got/file").exists()
