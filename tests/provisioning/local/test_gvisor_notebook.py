"""A real JupyterLab in gVisor: started, reached through the workspace's socket, with a cell that is run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jupyter_support import ENVIRONMENT, Jupyter
from local_support import Pool

from provisioning.drivers.local.gvisor import SEEN
from provisioning.drivers.local.isolation import probe

pytestmark = pytest.mark.engine


def test_a_cell_runs_in_gvisor_and_its_file_is_in_the_home(make_pool: Callable[..., Pool]) -> None:
    found = probe()
    if not found.gvisor or found.network is None:
        pytest.skip(found.gvisor_reason or found.network_reason)
    if not (ENVIRONMENT / "bin" / "jupyter-lab").exists():
        pytest.skip(f"no jupyter-lab in {ENVIRONMENT}; run `make up` or set BERTH_TEST_NOTEBOOK_ENV")
    lab = Jupyter(make_pool(environment=str(ENVIRONMENT), sandbox="gvisor"), prepared=False)
    kernel = lab.kernel()
    cell = "import subprocess; print(6 * 7); open('result', 'w').write(subprocess.getoutput('dmesg'))"
    assert lab.run(kernel, cell).startswith("42\n")
    assert SEEN in (lab.home / "result").read_text()
    lab.call("PUT", "/api/contents/notes.txt", {"type": "file", "format": "text", "content": "kept"})
    assert (lab.home / "notes.txt").read_text() == "kept"
