"""The way from a build's sandbox to the package index: the egress proxy, on a Unix socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from provisioning import egress_proxy
from provisioning.environment_builds.index import PackageIndex

END_TIMEOUT_S = 5.0
PORT = 8901
"""On the loopback of the sandbox, which is nobody else's."""


@contextlib.contextmanager
def opened(index: PackageIndex, folder: Path) -> Iterator[Path]:
    """The socket of a proxy that leads to the index, for as long as the context lasts. Raises `OSError`."""
    path = folder / "index.sock"
    listener = socket.socket(socket.AF_UNIX)
    try:
        parent = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{parent}/{path.name}")  # a path of its own may be too long
            # For the user of builds too; nobody else comes into the folder.
            os.chmod(f"/proc/self/fd/{parent}/{path.name}", 0o666)  # noqa: PTH101, S103
        finally:
            os.close(parent)
        listener.listen(128)
        watched = os.pidfd_open(os.getpid())
        plan = {
            "listener": listener.fileno(),
            "watched": watched,
            "hosts": [host for host in index.hosts if _is_name(host)],
            "networks": list(index.networks()),
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(egress_proxy.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(listener.fileno(), watched),
                env={},
            )
        finally:
            os.close(watched)
    finally:
        listener.close()
    with process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(plan).encode())
            process.stdin.close()
            process.stdin = None
            yield path
        finally:
            process.kill()
            process.wait(END_TIMEOUT_S)
            path.unlink(missing_ok=True)


def environ() -> dict[str, str]:
    """The variables by which programs inside find it."""
    url = f"http://127.0.0.1:{PORT}"
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return dict.fromkeys(names, url)


def _is_name(host: str) -> bool:
    try:
        egress_proxy.host_rule(host)
    except ValueError:
        return False
    return True
