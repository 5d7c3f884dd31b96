"""Access from a build's sandbox to the package index: the egress proxy on a Unix socket."""

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
"""On the sandbox's own loopback, so it is always free."""


@contextlib.contextmanager
def open_gate(index: PackageIndex, folder: Path) -> Iterator[Path]:
    """Run a proxy to the index within the context and yield its socket. Raises `OSError`."""
    path = folder / "index.sock"
    listener = socket.socket(socket.AF_UNIX)
    try:
        parent = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{parent}/{path.name}")  # the full path may be too long
            # Also for the user of builds; others cannot enter the folder.
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
    """Return the proxy variables for programs inside."""
    url = f"http://127.0.0.1:{PORT}"
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return dict.fromkeys(names, url)


def _is_name(host: str) -> bool:
    try:
        egress_proxy.host_rule(host)
    except ValueError:
        return False
    return True
