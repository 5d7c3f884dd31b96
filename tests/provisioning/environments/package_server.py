"""Serve a package index over HTTP from a folder, and fail on request. Standard library only.

Run as `python -I -S package_server.py FOLDER ADDRESS PORT`. The word in `FOLDER/does` selects the response to
requests for wheels: `serve`, `refuse` with status 500, `cut` or `hang` in the middle. Pages, the metadata of
wheels, and pip, which every environment needs, are always served. Each wheel that is not served adds a line
to `FOLDER/asked`.
"""

from __future__ import annotations

import sys
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(SimpleHTTPRequestHandler):
    """One HTTP/1.0 request."""

    folder: Path

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(self.folder))

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if self.path.endswith("/"):
            page = (path / "index.html") if (path / "index.html").exists() else None
            if page is None:
                self.send_error(404)
                return
            # Large indexes serve metadata separately, so resolving needs no whole wheel.
            self._send(page.read_bytes().replace(b"<a ", b'<a data-core-metadata="true" '), "text/html")
        elif path.suffix == ".metadata":
            with zipfile.ZipFile(path.with_suffix("")) as wheel:
                name = next(entry for entry in wheel.namelist() if entry.endswith(".dist-info/METADATA"))
                self._send(wheel.read(name), "text/plain")
        else:
            self._file(path.read_bytes())

    def _file(self, whole: bytes) -> None:
        does = (self.folder / "does").read_text().strip()
        if does == "serve" or "/pip/" in self.path:
            self._send(whole, "application/octet-stream")
            return
        with (self.folder / "asked").open("a") as request_log:
            request_log.write(f"{self.path}\n")
        if does == "refuse":
            self.send_error(500)
            return
        self._send(whole, "application/octet-stream", part=len(whole) // 2)
        if does == "hang":
            threading.Event().wait()

    def _send(self, whole: bytes, kind: str, *, part: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole[:part])
        self.wfile.flush()

    def log_message(self, *arguments: Any) -> None:
        pass


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    ThreadingHTTPServer((sys.argv[2], int(sys.argv[3])), Handler).serve_forever()
