"""File server of one home. Standard library only.

Run in a sandbox as `python -I -S server.py ROOT APP_FD CONTROL_FD RESERVE_BYTES [incoming | archives STORE]`.
The node sends requests over the socket CONTROL_FD: one line of JSON, answered by one line. Larger transfers
use HTTP on the socket APP_FD. The node grants each transfer a single-use token; the token for reading a whole
home is valid for a limited time. The server exits after a period without requests.

With `archives STORE`, ROOT is a home that is archived to the folder STORE and restored from it
(`home_archives`); the server accepts no other requests.

With `incoming`, ROOT is a folder that receives a home from another machine (`home_receive`); the server
accepts only `next`, and `take` with a stream after the line.
"""

# ruff: noqa: PTH120, PTH100

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import socket
import socketserver
import sys
import threading
import time
from urllib.parse import quote, unquote_to_bytes

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import home_archives  # type: ignore[import-not-found,unused-ignore]
import home_copy  # type: ignore[import-not-found,unused-ignore]
import home_receive  # type: ignore[import-not-found,unused-ignore]
import home_stream  # type: ignore[import-not-found,unused-ignore]
import packing  # type: ignore[import-not-found,unused-ignore]
import tree  # type: ignore[import-not-found,unused-ignore]
import uploads  # type: ignore[import-not-found,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

IDLE_S = 300.0
POLL_INTERVAL_S = 5.0
QUIET_S = 60.0
"""Maximum silence of the peer during a transfer."""
PREFIX = "/.berth/files/"
MAX_REQUEST = 1 << 20
MAX_GRANTS = 500
MAX_TRANSFERS = 16
MAX_PAGE = 1000
DRAIN_BYTES = 64 << 20
PIECE = 1 << 18
PART_S = 15.0
"""Time limit for sending one part of a home. Gateways on the way limit a response to one minute."""
HOME = "home"
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Grants:
    """Transfers allowed by the node, by the SHA-256 of their token. Each is single-use and expires."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grants: dict[str, dict[str, Any]] = {}

    def add(self, digest: str, grant: dict[str, Any]) -> None:
        with self._lock:
            now = time.monotonic()
            self._grants = {key: pending for key, pending in self._grants.items() if pending["until"] > now}
            if len(self._grants) >= MAX_GRANTS:
                raise tree.FileRequestRefused("busy")
            self._grants[digest] = {**grant, "until": now + float(grant["lifetime_s"])}

    def redeem(self, token: str) -> dict[str, Any] | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        with self._lock:
            grant = self._grants.pop(digest, None)
            if grant is not None and grant["what"] == HOME:
                self._grants[digest] = grant
        return grant if grant is not None and grant["until"] > time.monotonic() else None

    def origin(self, token: str) -> str:
        """Return the origin whose pages may use the token, or an empty string. Does not consume the token."""
        with self._lock:
            grant = self._grants.get(hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest())
        return str(grant.get("origin", "")) if grant and grant["until"] > time.monotonic() else ""

    def exist(self) -> bool:
        with self._lock:
            return any(grant["until"] > time.monotonic() for grant in self._grants.values())


class Server:
    """The files of one home."""

    def __init__(self, root: str, reserve_bytes: int) -> None:
        self.tree = tree.Tree(root)
        self.reserve = reserve_bytes
        self.grants = Grants()
        self.transfers = threading.BoundedSemaphore(MAX_TRANSFERS)
        self.busy = 0
        self.asked_at = time.monotonic()
        self._lock = threading.Lock()
        self._clearing = threading.Lock()
        self._receiving = threading.Lock()
        self.incoming: home_receive.Receiver | None = None
        self.archives: home_archives.Archives | None = None

    @contextlib.contextmanager
    def track_work(self) -> Iterator[None]:
        with self._lock:
            self.busy += 1
        try:
            yield
        finally:
            with self._lock:
                self.busy -= 1
                self.asked_at = time.monotonic()

    def idle(self) -> bool:
        with self._lock:
            quiet = self.busy == 0 and time.monotonic() - self.asked_at > IDLE_S
        works = self.archives is not None and self.archives.is_working
        return quiet and not works and not self.grants.exist()

    def clear(self) -> None:
        """Remove deleted files in the background."""

        def work() -> None:
            with self._clearing, self.track_work():
                self.tree.clear()

        threading.Thread(target=work, daemon=True).start()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request.

        Raises `FileRequestRefused`, or `KeyError`, `ValueError`, `TypeError` if it is malformed.
        """
        match request["do"]:
            case "list":
                offset, limit = max(0, int(request["offset"])), min(MAX_PAGE, max(1, int(request["limit"])))
                return dict(self.tree.listing(str(request["path"]), offset=offset, limit=limit))
            case "make_folder":
                self.tree.make_folder(str(request["path"]))
            case "rename":
                self.tree.rename(str(request["path"]), str(request["to"]))
            case "delete":
                self._delete([str(path) for path in request["paths"]])
            case "grant":
                return self._grant(request)
            case other:
                raise ValueError(other)
        return {}

    def receive(self, request: dict[str, Any], read: Callable[[int], bytes]) -> dict[str, Any]:
        """Answer a request about an incoming home. Raises like `home_receive`."""
        assert self.incoming is not None
        with self._receiving:
            if request["do"] == "take":
                self.incoming.receive(str(request["part"]), read)
                return dict(self.incoming.progress())
            if request["do"] == "next":
                return dict(self.incoming.next())
        raise ValueError(request["do"])

    def _delete(self, paths: list[str]) -> None:
        try:
            for path in paths:
                self.tree.delete(path)
        finally:
            self.clear()

    def _grant(self, request: dict[str, Any]) -> dict[str, Any]:
        path, transfer_kind = str(request["path"]), str(request["what"])
        kind = self.tree.kind(path)
        if transfer_kind not in ("file", "zip", "tar", "form", "put", HOME):
            raise ValueError(transfer_kind)
        expected_kind = "file" if transfer_kind == "file" else "folder"
        if kind != expected_kind:
            raise tree.FileRequestRefused(
                "is_a_link" if kind == "link" else f"not_a_{expected_kind}", path.rpartition("/")[2]
            )
        if transfer_kind == "put" and len(tree.parts_of(str(request["name"]))) != 1:
            raise tree.FileRequestRefused("bad_name")
        fields = ("path", "what", "name", "back", "replace", "most_bytes", "lifetime_s", "origin")
        self.grants.add(str(request["digest"]), {name: request[name] for name in fields if name in request})
        return {}


class Control(socketserver.StreamRequestHandler):
    """Handles requests of the node."""

    timeout = QUIET_S
    files: Server

    def handle(self) -> None:
        with self.files.track_work():
            try:
                request = json.loads(self.rfile.readline(MAX_REQUEST))
                if self.files.archives is not None:
                    answer = {"ok": self.files.archives.answer(request)}
                elif self.files.incoming is None:
                    answer = {"ok": self.files.answer(request)}
                else:
                    answer = {"ok": self.files.receive(request, self.rfile.read1)}
            except tree.FileRequestRefused as refused:
                answer = {"refused": {"code": refused.code, "name": refused.name}}
            except home_copy.DiskFull as error:
                answer = {
                    "refused": {"code": "no_room", "name": "", "needed": error.needed, "free": error.free}
                }
            except home_stream.Unreadable as error:
                answer = {"refused": {"code": "unreadable", "name": str(error)}}
            except home_stream.BadStream as error:
                answer = {"refused": {"code": "bad_stream", "name": str(error)}}
            except OSError as error:
                answer = {"refused": {"code": tree.refused(error).code, "name": ""}}
            except (ValueError, KeyError, TypeError) as error:
                answer = {"refused": {"code": "failed", "name": type(error).__name__}}
            with contextlib.suppress(OSError):
                while self.files.incoming is not None and self.rfile.read1(PIECE):
                    pass  # the sender reads the answer only after it has sent everything
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class Transfer(http.server.BaseHTTPRequestHandler):
    """Handles one download or upload."""

    protocol_version = "HTTP/1.1"
    timeout = QUIET_S
    files: Server
    origin = ""
    remaining = 0
    """Bytes of the body that are still unread."""

    def do_GET(self) -> None:
        self._serve(("file", "zip", "tar"))

    def do_POST(self) -> None:
        self._serve(("form", HOME))

    def do_OPTIONS(self) -> None:
        """Answer a CORS preflight request: pages of the grant's origin may send PUT."""
        self.close_connection = True
        with self.files.track_work():
            self.origin = self.files.grants.origin(self._token())
            if not self.origin:
                self._send_text(403, "This link has been used or has expired. Go back and try again.")
                return
            allowed = {"Access-Control-Allow-Methods": "PUT", "Access-Control-Allow-Headers": "content-type"}
            self._head(204, allowed)

    def do_PUT(self) -> None:
        self._serve(("put",))

    def _serve(self, allowed: tuple[str, ...]) -> None:
        self.close_connection = True
        with self.files.track_work():
            grant = self.files.grants.redeem(self._token()) if self.path.startswith(PREFIX) else None
            self.origin = str(grant.get("origin", "")) if grant is not None else ""
            if grant is None or grant["what"] not in allowed:
                self._send_text(403, "This link has been used or has expired. Go back and try again.")
                return
            if not self.files.transfers.acquire(blocking=False):
                self._send_text(503, "Too many transfers are running. Try again in a few minutes.")
                return
            try:
                getattr(self, f"_{grant['what']}")(grant)
            except tree.FileRequestRefused as refused:
                self._drain()
                self._send_text(409, f"The transfer was rejected: {refused.code}. Go back and try again.")
            except (ConnectionError, TimeoutError, uploads.UploadCutOff):
                pass
            finally:
                self.files.transfers.release()

    def _token(self) -> str:
        return self.path.removeprefix(PREFIX).partition("?")[0]

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        cors_headers = {"Access-Control-Allow-Origin": self.origin, "Vary": "Origin"} if self.origin else {}
        for name, value in {**SAFE_HEADERS, **cors_headers, "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_text(self, status: int, message: str) -> None:
        data = f"{message}\n".encode()
        self._head(status, {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(data))})
        self.wfile.write(data)

    # -- downloads ------------------------------------------------------------------------------

    def _file(self, grant: dict[str, Any]) -> None:
        descriptor, info, name = self.files.tree.open_file(grant["path"])
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(info.st_size)}
            self._head(200, {**headers, "Content-Disposition": attachment(name)})
            self.wfile.flush()
            if info.st_size:
                self.connection.sendfile(file, 0, info.st_size)

    def _zip(self, grant: dict[str, Any]) -> None:
        self._send_packed(grant, "zip", packing.write_zip)

    def _tar(self, grant: dict[str, Any]) -> None:
        self._send_packed(grant, "tar", packing.write_tar)

    def _send_packed(self, grant: dict[str, Any], ending: str, write: Callable[..., None]) -> None:
        names = tree.parts_of(grant["path"])
        name = names[-1] if names else "home"
        headers = {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
        self._head(200, {**headers, "Content-Disposition": attachment(f"{name}.{ending}")})
        chunks = Chunks(self.wfile)
        write(self.files.tree, grant["path"], name, chunks)
        chunks.close()

    def _home(self, grant: dict[str, Any]) -> None:
        """Send a part of the whole home to another machine; the body selects the part (`home_receive`)."""
        read = self._body()
        if self.remaining > MAX_REQUEST:
            raise tree.FileRequestRefused("too_large")
        try:
            request = json.loads(b"".join(iter(lambda: read(PIECE), b"")))
            part, after = str(request["part"]), str(request.get("after", ""))
            wants = [(str(path), max(0, int(offset))) for path, offset in request.get("wants", [])]
            start = int(request.get("start", 0))
            for path in (*([after] if after else []), *(path for path, _ in wants)):
                home_stream.names_of(path)
        except (ValueError, TypeError, KeyError, home_stream.BadStream) as error:
            raise tree.FileRequestRefused("bad_name") from error
        self._head(200, {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"})
        chunks, root = Chunks(self.wfile), self.files.tree.root
        if part == "files":
            home_stream.write_files(root, wants, chunks, limit_s=PART_S)
        elif part == "check":
            home_stream.write_check(root, chunks, after=after, start=start, limit_s=PART_S)
        else:
            home_stream.write_manifest(root, chunks, after=after, limit_s=PART_S)
        chunks.close()

    # -- uploads --------------------------------------------------------------------------------

    def _body(self) -> Callable[[int], bytes]:
        """Return a function that reads up to the body's end.

        Raises `FileRequestRefused` without a content length.
        """
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            raise tree.FileRequestRefused("length_missing")
        self.remaining = int(length)

        def read(count: int) -> bytes:
            data: bytes = self.rfile.read1(min(count, self.remaining)) if self.remaining else b""
            self.remaining -= len(data)
            return data

        return read

    def _drain(self) -> None:
        """Discard the rest of the body, up to a limit: a client that is still sending reads no answer."""
        drained = 0
        while self.remaining and drained < DRAIN_BYTES:
            data = self.rfile.read1(min(PIECE, self.remaining))
            if not data:
                break
            drained += len(data)
            self.remaining -= len(data)

    def _room(self, folder: int, grant: dict[str, Any]) -> uploads.UploadRoom:
        return uploads.UploadRoom(folder, int(grant["most_bytes"]), self.files.reserve)

    def _form(self, grant: dict[str, Any]) -> None:
        """Save the files of a browser form, then redirect to its page with the result."""
        read = self._body()
        saved, code, about = 0, "", ""
        with self.files.tree.folder(tree.parts_of(grant["path"])) as folder:
            self.files.tree.sweep(folder)
            room = self._room(folder, grant)
            try:
                for name, pieces in uploads.MultipartForm(self.headers.get("Content-Type", ""), read).files():
                    try:
                        uploads.save(folder, name, pieces, room, replace=bool(grant["replace"]))
                        saved += 1
                    except tree.FileRequestRefused as refused:
                        code, about = refused.code, tree.wire(name)[:100]
                        if code not in ("exists", "bad_name", "reserved_name", "not_allowed"):
                            raise
                        for _ in pieces:
                            pass
            except tree.FileRequestRefused as refused:
                code, about = refused.code, about or refused.name
        self._drain()
        query = f"saved={saved}" + (f"&refused={quote(code)}&about={quote(about)}" if code else "")
        self._head(303, {"Location": f"{grant['back']}&{query}", "Content-Length": "0"})

    def _put(self, grant: dict[str, Any]) -> None:
        """Save the body as one file."""
        read = self._body()
        name = os.fsdecode(unquote_to_bytes(grant["name"]))
        length = self.remaining
        with self.files.tree.folder(tree.parts_of(grant["path"])) as folder:
            self.files.tree.sweep(folder)
            pieces = iter(lambda: read(PIECE), b"")
            size = uploads.save(folder, name, _require_length(pieces, length), self._room(folder, grant),
                                replace=bool(grant["replace"]))  # fmt: skip
        data = json.dumps({"size": size}).encode()
        self._head(201, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: URLs contain tokens."""


def _require_length(pieces: Iterator[bytes], length: int) -> Iterator[bytes]:
    """Yield the pieces. Raises `UploadCutOff` if they are shorter than `length`."""
    for piece in pieces:
        length -= len(piece)
        yield piece
    if length:
        raise uploads.UploadCutOff


class Chunks:
    """Writes a body in chunked transfer coding (RFC 9112, 7.1). A truncated body has no final chunk."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.buffer = bytearray()

    def write(self, data: Any) -> int:
        self.buffer += data
        if len(self.buffer) >= PIECE:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self.buffer:
            self.out.write(b"%x\r\n%b\r\n" % (len(self.buffer), bytes(self.buffer)))
            self.buffer.clear()

    def close(self) -> None:
        self.flush()
        self.out.write(b"0\r\n\r\n")


def attachment(name: str) -> str:
    """Return a Content-Disposition that makes browsers download the file (RFC 6266)."""
    plain = "".join(
        char if char.isascii() and char.isprintable() and char not in '"\\%' else "_" for char in name
    )
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(os.fsencode(name), safe='')}"


class Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves a listening socket that has no address."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, descriptor: int, handler: Any) -> None:
        self.address_family = socket.AF_UNIX
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=descriptor)
        self.server_name, self.server_port = "home", 0

    def get_request(self) -> tuple[Any, Any]:
        connection, _ = self.socket.accept()
        return connection, ("home", 0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        kind = sys.exc_info()[0]
        if kind is not None and not issubclass(kind, (ConnectionError, TimeoutError)):
            print(f"unexpected error in a request: {kind.__name__}", file=sys.stderr, flush=True)


def main() -> None:
    root, app, control, reserve = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    os.umask(0o022)
    files = Server(root, reserve)
    if sys.argv[5:] == ["incoming"]:
        files.incoming = home_receive.Receiver(root, reserve)
    elif sys.argv[5:6] == ["archives"]:
        files.archives = home_archives.Archives(files.tree.root, sys.argv[6], reserve)
    for base, descriptor in ((Transfer, app), (Control, control)):
        listener = Listener(descriptor, type(base.__name__, (base,), {"files": files}))
        threading.Thread(target=listener.serve_forever, daemon=True).start()
    if files.incoming is None and files.archives is None:
        files.clear()
    while not files.idle():
        time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    main()
    os._exit(0)
