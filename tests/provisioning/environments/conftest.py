"""An index of files, and builds in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.drivers.local import isolation
from provisioning.environments.store import Store
from tests.provisioning.environments.package_index import Bench, PackageFolder, machine
from tests.suite.choice import quick_of


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageFolder:
    """The index of this node, with a package `pip` and nothing else."""
    found = PackageFolder(tmp_path / "index")
    found.wheel("pip")
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS", "BERTH_NODE_PACKAGE_HOSTS", "BERTH_MULTIUSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("BERTH_NODE_PACKAGE_INDEX", found.url)
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "0")
    return found


@pytest.fixture
def bench(tmp_path: Path, packages: PackageFolder) -> Bench:
    """Builds as a node makes them here: in a sandbox."""
    if not isolation.probe().bwrap:
        pytest.skip("no sandbox works here")
    return Bench(Store(tmp_path / "berth" / "environments"), machine(tmp_path / "berth"))


@pytest.fixture(params=quick_of(["sandbox", "none"], ["sandbox"], "the same builds without one"))
def any_bench(request: pytest.FixtureRequest, tmp_path: Path, packages: PackageFolder) -> Bench:
    """Builds with a sandbox and without."""
    if request.param == "sandbox":
        found: Bench = request.getfixturevalue("bench")
        return found
    return Bench(Store(tmp_path / "berth" / "environments"), machine(tmp_path / "berth", sandbox=False))
