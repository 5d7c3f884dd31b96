"""A real JupyterLab in gVisor, reached through the workspace socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jupyter_support import ENVIRONMENT, Jupyter, counts_a_file, heartbeats
from local_support import Pool

from provisioning.drivers.local.gvisor import BOOT_MESSAGE
from provisioning.drivers.local.isolation import probe

pytestmark = pytest.mark.engine


@pytest.fixture
def gvisor_pool(make_pool: Callable[..., Pool]) -> Pool:
    found = probe()
    if not found.gvisor or found.network is None:
        pytest.skip(found.gvisor_reason or found.network_reason)
    if not (ENVIRONMENT / "bin" / "jupyter-lab").exists():
        pytest.skip(f"no jupyter-lab in {ENVIRONMENT}; run `make up` or set BERTH_TEST_NOTEBOOK_ENV")
    return make_pool(environment=str(ENVIRONMENT), sandbox="gvisor")


def test_cell_runs_in_gvisor_and_writes_to_the_home(gvisor_pool: Pool) -> None:
    lab = Jupyter(gvisor_pool, prepared=False)
    kernel = lab.kernel()
    cell = "import subprocess; print(6 * 7); open('result', 'w').write(subprocess.getoutput('dmesg'))"
    assert lab.run(kernel, cell).startswith("42\n")
    assert BOOT_MESSAGE in (lab.home / "result").read_text()
    lab.call("PUT", "/api/contents/notes.txt", {"type": "file", "format": "text", "content": "kept"})
    assert (lab.home / "notes.txt").read_text() == "kept"


def test_heartbeats_from_gvisor_count_socket_traffic(gvisor_pool: Pool) -> None:
    """The relay is outside gVisor and the agent inside; a file transfer counts as work too."""
    with heartbeats(gvisor_pool, "traffic_bytes") as seen:
        lab = Jupyter(gvisor_pool, prepared=False, heartbeat_s=1)
        assert "version" in lab.call("GET", "/api")
        counts_a_file(lab, seen)
