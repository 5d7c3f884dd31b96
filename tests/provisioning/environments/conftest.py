"""A local package index, and builds in a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.drivers.local import isolation
from provisioning.environments.store import Store
from tests.provisioning.environments.package_index import Bench, PackageFolder, machine
from tests.suite.choice import quick_of


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageFolder:
    """The package index of this node, with the package `pip` only."""
    index = PackageFolder(tmp_path / "index")
    index.wheel("pip")
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS", "BERTH_NODE_PACKAGE_HOSTS", "BERTH_MULTIUSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("BERTH_NODE_PACKAGE_INDEX", index.url)
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "0")
    return index


@pytest.fixture
def bench(tmp_path: Path, packages: PackageFolder) -> Bench:
    """Builds in a sandbox, as on a node."""
    if not isolation.probe().bwrap:
        pytest.skip("no sandbox works here")
    return Bench(Store(tmp_path / "berth" / "environments"), machine(tmp_path / "berth"))


@pytest.fixture(params=quick_of(["sandbox", "none"], ["sandbox"], "the same builds without one"))
def any_bench(request: pytest.FixtureRequest, tmp_path: Path, packages: PackageFolder) -> Bench:
    """Builds with and without a sandbox."""
    if request.param == "sandbox":
        bench: Bench = request.getfixturevalue("bench")
        return bench
    return Bench(Store(tmp_path / "berth" / "environments"), machine(tmp_path / "berth", sandbox=False))
