"""A real JupyterLab in gVisor: started, reached through the workspace's socket, with a cell that is run."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from jupyter_support import ENVIRONMENT, LIMIT_S, Jupyter, until
from local_support import Pool

from provisioning.drivers.local.gvisor import SEEN
from provisioning.drivers.local.isolation import probe
from tests.node_sockets import PortalSocket, SocketConnection

pytestmark = pytest.mark.engine
LARGE = 48 << 20


@pytest.fixture
def gvisor_pool(make_pool: Callable[..., Pool]) -> Pool:
    found = probe()
    if not found.gvisor or found.network is None:
        pytest.skip(found.gvisor_reason or found.network_reason)
    if not (ENVIRONMENT / "bin" / "jupyter-lab").exists():
        pytest.skip(f"no jupyter-lab in {ENVIRONMENT}; run `make up` or set BERTH_TEST_NOTEBOOK_ENV")
    return make_pool(environment=str(ENVIRONMENT), sandbox="gvisor")


def test_a_cell_runs_in_gvisor_and_its_file_is_in_the_home(gvisor_pool: Pool) -> None:
    lab = Jupyter(gvisor_pool, prepared=False)
    kernel = lab.kernel()
    cell = "import subprocess; print(6 * 7); open('result', 'w').write(subprocess.getoutput('dmesg'))"
    assert lab.run(kernel, cell).startswith("42\n")
    assert SEEN in (lab.home / "result").read_text()
    lab.call("PUT", "/api/contents/notes.txt", {"type": "file", "format": "text", "content": "kept"})
    assert (lab.home / "notes.txt").read_text() == "kept"


def test_heartbeats_from_gvisor_count_what_comes_and_goes_by_the_socket(gvisor_pool: Pool) -> None:
    """The relay is outside of gVisor and the agent inside; a file on its way is work there, too."""
    seen: queue.Queue[Any] = queue.Queue()

    class Portal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/heartbeat"):
                seen.put(body["activity"]["traffic_bytes"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    portal = PortalSocket(gvisor_pool.home, Portal)
    try:
        lab = Jupyter(gvisor_pool, prepared=False, heartbeat_s=1)
        assert "version" in lab.call("GET", "/api")
        figures = [seen.get(timeout=LIMIT_S)]

        def rests() -> bool:
            figures.append(seen.get(timeout=LIMIT_S))
            return bool(0 < figures[-1] == figures[-2])

        until(rests, what="nothing more comes or goes")
        (lab.home / "large.bin").write_bytes(bytes(LARGE))
        connection = SocketConnection(lab.socket, timeout_s=LIMIT_S)
        connection.request("GET", "/files/large.bin", headers={"Authorization": f"Bearer {lab.token}"})
        assert len(connection.getresponse().read()) == LARGE
        connection.close()
        until(lambda: 0 < seen.get(timeout=LIMIT_S) - figures[-1] - LARGE < 1 << 20, what="the file")
    finally:
        portal.close()
