"""The file server of a home, a process in a sandbox: listing, uploads, and confinement."""

# ruff: noqa: PTH208 - names, which may be anything

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import secrets
import socket
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_support import Pool

from provisioning.drivers.local import file_server, state
from provisioning.drivers.local.failures import HomeMissing
from provisioning.drivers.local.file_server import Home
from provisioning.endpoints import files_socket_name
from provisioning.errors import InvalidSpec
from tests.node_sockets import plug

pytestmark = pytest.mark.engine
BOUNDARY = "----x7"
LIMIT_S = 30


class Files:
    """The files of ada's home in team t, requested like node and front door do."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        spec = pool.spec()
        self.team, self.owner = spec.team, spec.owner
        self.home: Path = pool.home / "homes" / spec.home_key
        self.home.mkdir(parents=True)
        self.folder = pool.home / "local" / files_socket_name(self.team, self.owner).partition(".")[0]

    def ask(self, do: str, **given: Any) -> Any:
        answer = self.pool.driver.files(team=self.team, owner=self.owner, question={"do": do, **given})
        return answer.get("ok", answer.get("refused", {}).get("code"))

    def names(self, path: str = "", **page: int) -> list[str]:
        answer = self.ask("list", path=path, **({"offset": 0, "limit": 1000} | page))
        return [row["id"] for row in answer["entries"]]

    def grant(self, what: str, path: str = "", **more: Any) -> str:
        token = secrets.token_urlsafe(16)
        given: dict[str, Any] = {"most_bytes": 1 << 30, "lifetime_s": 60, "replace": False, "back": "/b?p="}
        digest = hashlib.sha256(token.encode()).hexdigest()
        answer = self.ask("grant", what=what, path=path, digest=digest, **{**given, **more})
        return token if answer == {} else f"!{answer}"

    def send(self, method: str, token: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("home", timeout=LIMIT_S)
        connection.sock = plug(self.folder / "app.1.sock")
        connection.request(method, f"/.berth/files/{token}", body, headers)
        return connection.getresponse()

    def upload(self, token: str, *files: tuple[str, bytes]) -> str:
        """Return the address to which the browser is redirected."""
        parts = [
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
            f"Content-Type: text/plain\r\n\r\n".encode()
            + data
            + b"\r\n"
            for name, data in files
        ]
        body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        answer = self.send("POST", token, body, **{"Content-Type": kind})
        return answer.headers.get("Location") or str(answer.status)


@pytest.fixture(params=["bwrap", "none"])
def files(make_pool: Callable[..., Pool], request: pytest.FixtureRequest) -> Iterator[Files]:
    if request.param == "bwrap":
        request.getfixturevalue("sandbox")
        found = Files(make_pool())
    else:
        found = Files(make_pool(sandbox="none"))
    yield found
    found.pool.driver._file_servers().end(Home(found.team, found.owner))


@pytest.fixture
def apart(make_pool: Callable[..., Pool], sandbox: None) -> Iterator[Files]:
    """Files in a sandbox."""
    found = Files(make_pool())
    yield found
    found.pool.driver._file_servers().end(Home(found.team, found.owner))


def test_file_servers_end_with_their_installation(files: Files) -> None:
    assert files.names() == []
    other = files.pool.home / "homes" / files.team / "zoe"
    other.mkdir()
    answer = files.pool.driver.files(
        team=files.team, owner="zoe", question={"do": "list", "path": "", "offset": 0, "limit": 10}
    )
    assert "ok" in answer
    base = files.pool.home / "local"
    folders = [state.WorkspaceDir(base, path.name) for path in base.glob("files-*")]
    assert len(folders) == 2 and all(folder.alive() for folder in folders)
    assert files.pool.driver.release_host(keep_workspaces=True) == 0
    assert not any(folder.alive() or folder.path.exists() for folder in folders)
    assert files.pool.driver.release_host(keep_workspaces=True) == 0
    assert file_server.end_all(base / "nowhere") == 0
    # The next request starts another one.
    assert files.names() == []


def test_folders_are_listed_created_renamed_and_deleted(files: Files) -> None:
    (files.home / "b.txt").write_text("bee")
    assert files.ask("make_folder", path="data") == {}
    assert files.ask("make_folder", path="data") == "exists"
    assert files.ask("make_folder", path="data/deep") == {}
    (row, text) = files.ask("list", path="", offset=0, limit=10)["entries"]
    assert (row["id"], row["kind"]) == ("data", "folder")
    assert (text["id"], text["kind"], text["size"]) == ("b.txt", "file", 3)
    assert files.ask("rename", path="b.txt", to="c.txt") == {}
    assert files.ask("rename", path="c.txt", to="data/deep/c.txt") == {}
    assert (files.home / "data" / "deep" / "c.txt").read_text() == "bee"
    assert files.ask("rename", path="data", to="data/deep/itself") == "bad_name"
    assert files.ask("delete", paths=["data"]) == {}
    assert files.names() == []
    until = time.monotonic() + LIMIT_S
    while os.listdir(files.home) and time.monotonic() < until:
        time.sleep(0.02)
    assert os.listdir(files.home) == []
    assert files.ask("delete", paths=["data"]) == "not_found"


def test_renaming_never_replaces_a_file(files: Files) -> None:
    (files.home / "a").write_text("a")
    (files.home / "b").write_text("b")
    (files.home / "empty").mkdir()
    (files.home / "other").mkdir()
    assert files.ask("rename", path="a", to="b") == "exists"
    assert files.ask("rename", path="other", to="empty") == "exists"
    assert (files.home / "b").read_text() == "b"


@pytest.mark.parametrize(
    "path", ["..", "../x", "a/../../x", "/etc", "a//b", ".", "%2e%2e", "a%2fb", "%00", "%zz", "x" * 256]
)
def test_paths_outside_the_home_are_refused(files: Files, path: str) -> None:
    for do in ({"do": "list", "offset": 0, "limit": 1}, {"do": "make_folder"}, {"do": "rename", "to": "x"}):
        given = {name: value for name, value in do.items() if name != "do"}
        assert files.ask(str(do["do"]), path=path, **given) in ("bad_name", "not_found")
    assert files.ask("delete", paths=[path]) in ("bad_name", "not_found")
    assert files.grant("file", path) in ("!bad_name", "!not_found")
    assert files.grant("put", "", name=path).startswith("!") or path == "/etc"


def test_links_are_not_followed(files: Files, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (files.home / "way").symlink_to(outside)
    (files.home / "file").symlink_to(outside / "secret")
    (files.home / "passwd").symlink_to("/etc/passwd")
    (files.home / "up").symlink_to("..")
    kinds = {row["id"]: row["kind"] for row in files.ask("list", path="", offset=0, limit=10)["entries"]}
    assert set(kinds.values()) == {"link"}
    for name in ("way", "up"):
        assert files.ask("list", path=name, offset=0, limit=1) in ("is_a_link", "not_a_folder")
        assert files.ask("make_folder", path=f"{name}/x") in ("is_a_link", "not_a_folder")
        assert files.grant("zip", name) == "!is_a_link"
        assert files.grant("form", name) == "!is_a_link"
    for name in ("file", "passwd"):
        assert files.grant("file", name) == "!is_a_link"
    assert files.ask("delete", paths=["way"]) == {}
    assert (outside / "secret").read_text() == "secret"


def test_link_replacing_a_file_after_its_grant_is_not_followed(files: Files) -> None:
    (files.home / "file").write_text("mine")
    (files.home / "target").mkdir()
    token, upload = files.grant("file", "file"), files.grant("form", "target")
    (files.home / "file").unlink()
    (files.home / "file").symlink_to("/etc/passwd")
    (files.home / "target").rmdir()
    (files.home / "target").symlink_to("/tmp")
    answer = files.send("GET", token)
    assert (answer.status, b"root:" in answer.read()) == (409, False)
    assert files.upload(upload, ("x", b"1")) == "409"


def test_pipes_sockets_and_devices_are_not_opened(files: Files) -> None:
    os.mkfifo(files.home / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(files.home, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/sock")
        os.close(here)
        (files.home / "d").mkdir()
        os.mkfifo(files.home / "d" / "pipe")
        (files.home / "d" / "text").write_text("text")
        kinds = {row["id"]: row["kind"] for row in files.ask("list", path="", offset=0, limit=10)["entries"]}
        assert kinds == {"d": "folder", "pipe": "other", "sock": "other"}
        for name in ("pipe", "sock"):
            assert files.grant("file", name) == "!not_a_file"
        packed = files.send("GET", files.grant("tar", "d")).read()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["d/text"]


ODD = [
    "new\nline",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "100%",
    "größe.txt",
    "back\\slash",
    "\udcff",
]


def test_unusual_file_names_are_listed_and_found(files: Files) -> None:
    for name in ODD:
        (files.home / name.replace("/", "_")).write_bytes(b"x")
    ids = files.names()
    assert all(id_.isprintable() for id_ in ids)
    assert "gr\u00f6\u00dfe.txt" in ids and "100%25" in ids and "%FF" in ids and "new%0Aline" in ids
    for each in ids:
        answer = files.send("GET", files.grant("file", each))
        assert (answer.status, answer.read()) == (200, b"x")
        said = answer.headers["Content-Disposition"]
        assert said.startswith("attachment; ") and "\n" not in said and "\u202e" not in said
        assert files.ask("delete", paths=[each]) == {}
    assert files.names() == []


@pytest.mark.thorough("makes 100,000 files")
def test_listing_of_100000_files_is_paged(apart: Files) -> None:
    assert apart.names() == []  # the home has been handed over if necessary
    many = apart.home / "many"
    many.mkdir()
    for number in range(100_000):
        os.close(os.open(many / f"f{number:06}", os.O_CREAT | os.O_WRONLY))
    answer = apart.ask("list", path="many", offset=99_990, limit=200)
    assert answer["total"] == 100_000
    assert [row["id"] for row in answer["entries"]][-1] == "f099999"
    assert len(answer["entries"]) == 10


def test_download_is_an_attachment_and_its_link_is_valid_once(files: Files) -> None:
    (files.home / "page.html").write_text("<script>1</script>")
    token = files.grant("file", "page.html")
    answer = files.send("GET", token)
    assert answer.read() == b"<script>1</script>"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert files.send("GET", token).status == 403
    assert files.send("GET", "nonsense").status == 403
    assert files.send("POST", files.grant("file", "page.html"), b"").status == 403
    assert files.send("GET", files.grant("file", "page.html", lifetime_s=-1)).status == 403


def test_folder_is_downloaded_as_tar_or_zip(files: Files) -> None:
    inner = files.home / "d" / "inner"
    inner.mkdir(parents=True)
    (inner / "a.txt").write_text("a" * 700_000)
    (files.home / "d" / "empty").touch()
    (files.home / "d" / "link").symlink_to("inner/a.txt")
    with tarfile.open(fileobj=io.BytesIO(files.send("GET", files.grant("tar", "d")).read())) as tar:
        assert sorted(tar.getnames()) == ["d/empty", "d/inner", "d/inner/a.txt", "d/link"]
        assert len(tar.extractfile("d/inner/a.txt").read()) == 700_000  # type: ignore[union-attr]
        assert tar.getmember("d/link").linkname == "inner/a.txt"
    with zipfile.ZipFile(io.BytesIO(files.send("GET", files.grant("zip", "")).read())) as archive:
        assert archive.testzip() is None
        assert "home/d/inner/a.txt" in archive.namelist()


def test_several_files_are_uploaded_at_once(files: Files) -> None:
    (files.home / "in").mkdir()
    data = os.urandom(900_000) + b"\r\n--" + BOUNDARY.encode()[:4] + b"\r\n"
    back = files.upload(files.grant("form", "in"), ("a.bin", data), ("empty", b""), ("", b""), ("ü b", b"x"))
    assert back == "/b?p=&saved=3"
    assert (files.home / "in" / "a.bin").read_bytes() == data
    assert (files.home / "in" / "empty").read_bytes() == b""
    assert sorted(os.listdir(files.home / "in")) == ["a.bin", "empty", "ü b"]


def test_existing_files_are_replaced_only_on_request(files: Files) -> None:
    (files.home / "a").write_text("old")
    assert (
        files.upload(files.grant("form"), ("a", b"new"), ("b", b"b"))
        == "/b?p=&saved=1&refused=exists&about=a"
    )
    assert (files.home / "a").read_text() == "old"
    assert files.upload(files.grant("form", replace=True), ("a", b"new")) == "/b?p=&saved=1"
    assert (files.home / "a").read_text() == "new"


def test_upload_names_stay_within_the_folder(files: Files) -> None:
    names = ("../../evil", "/etc/evil", "C:\\x\\evil2", "..", ".berth-upload-1")
    back = files.upload(files.grant("form"), *((name, b"x") for name in names))
    assert back.startswith("/b?p=&saved=2&refused=")
    assert sorted(os.listdir(files.home)) == ["evil", "evil2"]


def test_full_home_refuses_uploads_and_keeps_no_partial_file(files: Files) -> None:
    back = files.upload(files.grant("form", most_bytes=1000), ("a", b"x" * 400), ("b", b"x" * 700))
    assert back == "/b?p=&saved=1&refused=home_full&about=b"
    assert os.listdir(files.home) == ["a"]
    assert files.ask("delete", paths=["a"]) == {}


def test_interrupted_upload_never_gets_its_final_name(files: Files) -> None:
    token = files.grant("put", "", name="whole")
    connection = plug(files.folder / "app.1.sock")
    connection.sendall(f"PUT /.berth/files/{token} HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf".encode())
    connection.close()
    until = time.monotonic() + LIMIT_S
    while os.listdir(files.home) and time.monotonic() < until:
        time.sleep(0.02)
    assert os.listdir(files.home) == []
    answer = files.send("PUT", files.grant("put", "", name="whole"), b"all of it")
    assert (answer.status, json.loads(answer.read())) == (201, {"size": 9})
    assert (files.home / "whole").read_bytes() == b"all of it"
    assert files.send("PUT", files.grant("put", "", name="whole"), b"again").status == 409
    token = files.grant("put", "", name="c")
    with plug(files.folder / "app.1.sock") as unsized:
        head = f"PUT /.berth/files/{token} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        unsized.sendall(head.encode())
        assert unsized.recv(12) == b"HTTP/1.1 409"


def test_uploads_keep_the_disk_reserve(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", str(1 << 30))
    assert files.upload(files.grant("form"), ("a", b"x")) == "/b?p=&saved=0&refused=disk_full&about=a"
    assert os.listdir(files.home) == []


def test_file_server_reaches_no_other_home_and_no_network(apart: Files) -> None:
    other = apart.home.parent / "eve"
    other.mkdir()
    (other / "secret").write_text("secret")
    apart.ask("list", path="", offset=0, limit=1)
    folder = state.WorkspaceDir(apart.pool.driver.base, apart.folder.name)
    launched = folder.launched()
    assert launched is not None and folder.alive()
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    (inner,) = Path(f"/proc/{children[0]}/task/{children[0]}/children").read_text().split() or [children[0]]
    root = Path(f"/proc/{inner}/root")
    assert os.listdir(root / "home") == [apart.owner]
    assert not (root / str(other).lstrip("/")).exists()
    assert os.listdir(f"/proc/{inner}/root/run/berth/node") == []
    routes = Path(f"/proc/{inner}/net/route").read_text().splitlines()
    assert len(routes) == 1


def test_crashed_file_server_is_restarted(files: Files) -> None:
    files.ask("make_folder", path="a")
    files.pool.driver._file_servers().end(Home(files.team, files.owner))
    assert not files.folder.exists()
    assert files.names() == ["a"]


def test_deleting_a_home_stops_its_file_server(files: Files) -> None:
    files.ask("make_folder", path="a")
    assert files.pool.driver.delete_home(team=files.team, owner=files.owner)
    assert not files.folder.exists() and not files.home.exists()
    with pytest.raises(HomeMissing):
        files.names()


def test_invalid_home_names_are_refused(make_pool: Callable[..., Pool]) -> None:
    driver = make_pool().driver
    for team, owner in (("..", "x"), ("t", "../x"), ("t", ""), ("a/b", "c")):
        with pytest.raises(InvalidSpec):
            driver.files(team=team, owner=owner, question={"do": "list", "path": "", "offset": 0, "limit": 1})
    assert driver.list_owned() == ()


def test_invalid_query_is_refused(files: Files) -> None:
    for question in (
        {"do": "exec"},
        {"do": "list"},
        {"do": "grant", "what": "all", "path": "", "digest": "x"},
    ):
        assert files.ask(**question) == "failed"  # type: ignore[arg-type]


def test_only_pages_of_the_portal_may_upload(files: Files) -> None:
    """A CORS preflight uses up no ticket and reveals nothing without one."""
    portal = "https://berth.example.org"
    token = files.grant("put", name="a", origin=portal)
    for _ in range(2):
        asked = files.send("OPTIONS", token, Origin="https://evil.example")
        assert asked.status == 204 and asked.headers["Access-Control-Allow-Origin"] == portal
        assert asked.headers["Access-Control-Allow-Methods"] == "PUT"
        assert "Access-Control-Allow-Credentials" not in asked.headers
    sent = files.send("PUT", token, b"one")
    assert sent.status == 201 and sent.headers["Access-Control-Allow-Origin"] == portal
    assert (files.home / "a").read_bytes() == b"one"
    again = files.grant("put", name="a", origin=portal)
    refused = files.send("PUT", again, b"two")
    assert refused.status == 409 and b": exists." in refused.read()
    assert refused.headers["Access-Control-Allow-Origin"] == portal
    for other in (files.grant("file", "a"), token, "x" * 43):
        asked = files.send("OPTIONS", other)
        assert asked.status == 403 and "Access-Control-Allow-Origin" not in asked.headers
    assert files.send("GET", files.grant("file", "a")).headers["Access-Control-Allow-Origin"] is None
