"""Packages that users install on top of an environment with pip, uv and %pip."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from jupyter_support import Jupyter
from local_support import Pool, ask

from provisioning.agent.program import packages_overlay
from provisioning.drivers.local import packages
from provisioning.environment_messages import OwnPackagesRequest
from provisioning.types import ObservedState
from tests.provisioning.environments.package_index import PackageFolder

pytestmark = [pytest.mark.apart, pytest.mark.engine, pytest.mark.usefixtures("sandbox")]
WAYS = (
    ("one", "%pip install --quiet --no-index --find-links {folder} one"),
    ("two", "!pip install --quiet --no-index --find-links {folder} two"),
    ("three", "!uv pip install --quiet --no-index --find-links {folder} three"),
)


@pytest.fixture
def pool(notebook_pool: Pool) -> Pool:
    return notebook_pool


def wheels_in(home: Path) -> str:
    """Return the folder of wheels in a home, as seen inside."""
    index = PackageFolder(home / "index")
    for name, _ in WAYS:
        path = index.wheel(name)
        path.rename(home / path.name)
    return "~"


@pytest.mark.thorough("installs with three programs")
@pytest.mark.parametrize("prepared", [True, False])
def test_pip_uv_and_notebook_pip_install_packages(pool: Pool, prepared: bool) -> None:
    jupyter = Jupyter(pool, prepared=prepared)
    kernel = jupyter.kernel()
    home = f"/home/{jupyter.spec.owner}"
    folder = wheels_in(jupyter.home)
    for name, way in WAYS:
        said = jupyter.run(kernel, way.format(folder=folder))
        file = jupyter.value(kernel, f"__import__({name!r}).__file__")
        assert file.startswith(f"{home}/.local/share/berth"), said
    # The whole environment is visible, and pip knows its packages.
    assert jupyter.value(kernel, "__import__('ipykernel').__file__").startswith(
        str(pool.driver.environment_path.resolve())
    )
    assert "Would install" not in jupyter.run(kernel, "!pip install --dry-run --no-index ipykernel")
    of = OwnPackagesRequest(team=jupyter.spec.team, owner=jupyter.spec.owner)
    assert pool.driver.own_packages(of) == ["one==1.0", "three==1.0", "two==1.0"]
    again = Jupyter(pool, prepared=not prepared)
    assert again.value(again.kernel(), "__import__('one').version") == "1.0"


@pytest.mark.thorough("starts three notebooks")
def test_kernel_logo_is_written_to_homes_with_links(pool: Pool) -> None:
    """A link leads out of the kernel folder, where Jupyter serves no files."""
    jupyter = Jupyter(pool, prepared=False)
    logos = pool.driver.environment_path / "share" / "jupyter" / "kernels" / "python3"
    pictures = {path.name: path.read_bytes() for path in logos.glob("logo-*")}
    assert pictures
    found = jupyter.call("GET", "/api/kernelspecs")["kernelspecs"]["python3"]["resources"]
    for name, data in pictures.items():
        assert jupyter.bytes("GET", found[name.partition(".")[0]]) == data
    # A home with the links of earlier versions.
    (overlay,) = jupyter.home.glob(".local/share/berth/packages/*")
    for name in pictures:
        kept = overlay / packages_overlay.KERNEL / name
        kept.unlink()
        kept.symlink_to(logos / name)
    stamp = overlay / packages_overlay.STAMP
    stamp.write_text(stamp.read_text().replace(packages_overlay.RECIPE, "1", 1))
    pool.wait(lambda: pool.driver.ensure_stopped(jupyter.spec.ref, grace_s=0), ObservedState.STOPPED)
    again = Jupyter(pool, prepared=False)
    for name, data in pictures.items():
        assert again.bytes("GET", found[name.partition(".")[0]]) == data


def test_packages_are_kept_per_environment_and_removed_on_request(pool: Pool) -> None:
    spec = pool.spec(environment_name="analysis")
    seen = pool.run(spec)
    folder = ask(seen, "os.environ['VIRTUAL_ENV']")
    assert folder == f"/home/ada/.local/share/berth/packages/analysis-{Path(folder).name.rpartition('-')[2]}"
    assert ask(seen, "os.environ['PATH'].split(':')[0]") == f"{folder}/bin"
    # The server itself is that of the environment, whatever is installed on top.
    assert ask(seen, "sys.prefix") == str(pool.driver.environment_path.resolve())
    inside = pool.home / "homes" / spec.home_key / Path(folder).relative_to("/home/ada")
    (site,) = inside.glob("lib/python3*/site-packages")
    (site / "mine-1.2.dist-info").mkdir()
    of = OwnPackagesRequest(team=spec.team, owner=spec.owner, environment_name="analysis")
    assert pool.driver.own_packages(of) == ["mine==1.2"]
    assert pool.driver.own_packages(replace(of, environment_name="other")) == []
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref, grace_s=0), ObservedState.STOPPED)
    again = replace(spec, ref=replace(spec.ref, generation=2), reset_packages=True)
    pool.run(again)
    assert pool.driver.own_packages(of) == []


def test_package_list_does_not_follow_links_in_the_home(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "lib" / "python3.12" / "site-packages"
    elsewhere.mkdir(parents=True)
    (elsewhere / "secret-1.dist-info").mkdir()
    home = tmp_path / "home"
    folder = home.joinpath(*packages.FOLDER)
    folder.mkdir(parents=True)
    (folder / "x-python3.12").symlink_to(tmp_path / "elsewhere")
    assert packages.installed(home, "x-python3.12") == []
    assert packages.installed(tmp_path / "nobody", "x-python3.12") == []


def test_unchanged_overlay_is_not_rewritten(tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to("/usr/bin/env")
    folder = str(tmp_path / "overlay")
    packages_overlay.make(folder, str(python), str(site))
    written = {path: path.lstat().st_mtime_ns for path in Path(folder).rglob("*")}
    packages_overlay.make(folder, str(python), str(site))
    assert {path: path.lstat().st_mtime_ns for path in Path(folder).rglob("*")} == written
    (Path(folder) / "lib" / "python3.12" / "site-packages" / "mine.py").touch()
    packages_overlay.make(folder, str(python), str(site), reset=True)
    assert not list(Path(folder).rglob("mine.py"))
    assert str(Path(folder, "bin", "python").readlink()) == os.path.realpath("/usr/bin/env")
