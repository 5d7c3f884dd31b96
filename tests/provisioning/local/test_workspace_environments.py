"""Workspaces in chosen software environments."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_support import Pool, ask

from portal.catalog.environments.sources import pinned_requirements
from provisioning.drivers.local import isolation
from provisioning.drivers.local.failures import EnvironmentMissing
from provisioning.drivers.local.software import SPARES_FOR_S
from provisioning.environment_messages import OwnPackagesRequest
from provisioning.environments.store import STAMP, Store
from provisioning.errors import Blame
from provisioning.types import ObservedState
from tests.provisioning.environments.package_index import Bench, PackageFolder, machine

pytestmark = [pytest.mark.engine, pytest.mark.apart]


@pytest.fixture
def pool(make_pool: Callable[..., Pool]) -> Pool:
    return make_pool()


@pytest.fixture
def digest(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment on the node of this pool."""
    packages = PackageFolder(tmp_path / "index")
    packages.wheel("pip")
    packages.wheel(
        "alpha", files={"alpha-1.0.dist-info/entry_points.txt": "[console_scripts]\ntool = alpha:x\n"}
    )
    monkeypatch.setenv("BERTH_NODE_PACKAGE_INDEX", packages.url)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", "0")
    if not isolation.probe().bwrap:
        pytest.skip("no sandbox works here")
    return Bench(Store(pool.driver.environments.folder), machine(pool.home / "local")).build("alpha").digest


def test_workspace_runs_in_its_read_only_environment(pool: Pool, digest: str) -> None:
    spec = pool.spec(environment=digest, environment_name="analysis")
    seen = pool.run(spec)
    place = pool.driver.environments.folder_of(digest)
    (site,) = place.glob("lib/python3*/site-packages")
    assert ask(seen, "sys.prefix") == str(place)
    assert ask(seen, "os.environ['PATH'].split(':')[1]") == str(place / "bin")
    assert ask(seen, "__import__('alpha').version") == "1.0"
    assert ask(seen, f"__import__('shutil').which('tool') == {str(place / 'bin' / 'tool')!r}") is True
    assert ask(seen, f"open({str(site / 'alpha.py')!r}, 'w')") in ("OSError", "PermissionError")
    assert ask(seen, f"os.listdir({str(pool.driver.environments.folder)!r})") == [place.name]
    assert (site / "alpha.py").read_text() == "version = '1.0'\n"
    # An environment in use by a workspace is not removed.
    assert not pool.driver.remove_environment(digest)
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref, grace_s=0), ObservedState.STOPPED)
    assert pool.driver.remove_environment(digest) and not place.exists()


def test_environment_missing_on_the_node_is_awaited(pool: Pool) -> None:
    spec = pool.spec(environment="0" * 32)
    with pytest.raises(EnvironmentMissing) as caught:
        pool.start(spec)
    assert (caught.value.code, caught.value.retryable, caught.value.blame) == (
        "environment_missing",
        True,
        Blame.OPERATOR,
    )
    assert pool.driver.observe(spec.ref).state is ObservedState.ABSENT


def test_incomplete_environment_counts_as_missing(pool: Pool, digest: str) -> None:
    stamp = pool.driver.environments.folder_of(digest) / STAMP
    text = stamp.read_text()
    for broken in ("", "{", text.replace(digest, "1" * 32)):
        stamp.write_text(broken)
        with pytest.raises(EnvironmentMissing):
            pool.start(pool.spec(environment=digest))
    stamp.unlink()
    (stamp.parent / "target").write_text(text)
    stamp.symlink_to("target")
    with pytest.raises(EnvironmentMissing):
        pool.start(pool.spec(environment=digest))


@pytest.mark.thorough("an environment of its own; `make test` runs in one")
def test_environment_links_expose_no_host_folders(pool: Pool, digest: str, tmp_path: Path) -> None:
    secret = tmp_path / "somebody" / "lib"
    secret.mkdir(parents=True)
    place = pool.driver.environments.folder_of(digest)
    python = place / "bin" / "python"
    target = python.readlink()
    (secret.parent / "bin").mkdir()
    (secret.parent / "bin" / "python").symlink_to(target)
    python.unlink()
    python.symlink_to(secret.parent / "bin" / "python")
    with pool.driver._environment(digest) as found:
        assert not any(Path(path).is_relative_to(tmp_path / "somebody") for path in found.readonly)


@pytest.mark.thorough("an environment of its own; `make test` runs in one")
def test_spares_are_kept_for_recently_used_environments(pool: Pool, digest: str) -> None:
    store = pool.driver.environments
    assert store.used(since=0) == [digest]
    used = store.folder / ".used" / digest
    os.utime(used, (0, 0))
    assert store.used(since=SPARES_FOR_S) == []
    store.mark_used(digest)
    assert [found.python for found in pool.driver._environments_in_use()] == [
        str(store.folder_of(digest) / "bin" / "python3")
    ]
    pool.driver.spare_environments = 0
    assert pool.driver._environments_in_use() == []


def test_environment_is_in_the_inventory(pool: Pool, digest: str) -> None:
    (node,) = pool.driver.inventory().nodes
    (held,) = node.environments
    assert held.digest == digest and {"tool", "python3"} <= set(held.programs)
    stamp: Any = json.loads((pool.driver.environments.folder_of(digest) / STAMP).read_text())
    assert stamp["python_version"].startswith("3.")


@pytest.mark.thorough("two builds")
def test_installed_packages_become_a_shared_environment(pool: Pool, digest: str, tmp_path: Path) -> None:
    """As in the portal: the list of the node, the list of the new environment, a build, a start."""
    spec = pool.spec(environment=digest, environment_name="analysis")
    seen = pool.run(spec)
    folder = ask(seen, "os.environ['VIRTUAL_ENV']")
    overlay = pool.home / "homes" / spec.home_key / Path(folder).relative_to("/home/ada")
    (site,) = overlay.glob("lib/python3*/site-packages")
    index = PackageFolder(tmp_path / "index")
    with zipfile.ZipFile(index.wheel("extra", "2.5")) as wheel:
        wheel.extractall(site)
    asked_for = OwnPackagesRequest(spec.team, spec.owner, digest, "analysis")
    own = [tuple(package.split("==")) for package in pool.driver.own_packages(asked_for)]
    assert own == [("extra", "2.5")]
    source = pinned_requirements("packages", "alpha\n", have={"alpha": "1.0"}, more=own)
    assert source == "alpha==1.0\nextra==2.5\n"
    bench = Bench(Store(pool.driver.environments.folder), machine(pool.home / "local"))
    made = bench.build(source)
    other = pool.spec(owner="bob", environment=made.digest, environment_name="saved")
    running = pool.run(other)
    assert ask(running, "__import__('extra').version") == "2.5"
    assert ask(running, "__import__('extra').__file__").startswith(
        str(pool.driver.environments.folder_of(made.digest))
    )
