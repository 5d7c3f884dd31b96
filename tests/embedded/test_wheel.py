"""The wheel is complete: with only its dependencies, it starts and runs a notebook."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import instance
from tests.embedded import empty_environment
from tests.instance import ROOT, Berth

FOLDERS = ("portal", "provisioning", "templates", "static", "requirements", "docs")
pytestmark = pytest.mark.engine

BUILT = (*FOLDERS, "pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."],
        cwd=copy, check=True, timeout=300,
    )  # fmt: skip
    (built,) = (copy / "dist").glob("*.whl")
    return built


def test_wheel_contains_exactly_the_product_files(wheel):
    there = {
        path.relative_to(ROOT).as_posix()
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {
        name.removeprefix("berth_files/")
        for name in zipfile.ZipFile(wheel).namelist()
        if not re.match(r"berth-[0-9.]+\.dist-info/", name)
    }
    assert held == there


def test_wheel_contains_its_license(wheel):
    assert empty_environment.license_of(wheel) == ("Apache-2.0", (ROOT / "LICENSE").read_text())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment as created by `pip install "berth[embedded]"`."""
    return empty_environment.make(tmp_path_factory.mktemp("installed"), wheel, extras=["embedded"])


@pytest.fixture(scope="module")
def berth(installed, tmp_path_factory) -> Iterator[Berth]:
    mine = Path(sys.executable).parent
    path = ":".join([str(installed), *(each for each in os.environ["PATH"].split(":") if Path(each) != mine)])
    with instance.running(
        tmp_path_factory.mktemp("wheel"),
        environment=None,
        server=[str(installed / "berth-server")],
        PATH=path,
        PYTHONPATH="",
        # It creates its notebook environment, if a package index is available.
        BERTH_SKIP_NOTEBOOK="0" if instance.notebook_environment() else "1",
    ) as berth:
        yield berth


@pytest.mark.thorough("starts a Berth from the wheel; `make test` looks into the wheel")
def test_wheel_runs_without_the_checkout(berth, installed):
    with httpx.Client(base_url=f"http://127.0.0.1:{berth.port}", follow_redirects=True, timeout=30) as client:
        page = client.get("/")
        assert page.status_code == 200 and "Sign in" in page.text
        (style,) = re.findall(r'href="(/static/berth/tokens\.[0-9a-f]+\.css)"', page.text)
        assert client.get(style).status_code == 200
    with contextlib.closing(berth.api("ada")) as api:
        made = api.create("files", "tiny", name="of-the-wheel")
        api.wait(made["id"], "running")
    assert berth.enter(made["id"], berth.tokens["ada"]) == 200
    services = berth.services()
    for name in ("web", "gateway", "control", "node", "beat"):
        folder = Path(f"/proc/{services[name]['pid']}/cwd").readlink()
        assert folder.is_relative_to(installed.parent), name


@pytest.mark.thorough("starts a Berth from the wheel; `make test` looks into the wheel")
def test_notebook_runs_in_the_created_environment(berth, installed):
    instance.need_notebook_environment()
    own = berth.home / "environments" / "notebook"
    assert (own / "bin" / "jupyter-lab").is_file() and own.resolve().is_relative_to(berth.home.resolve())
    with contextlib.closing(berth.api("ada")) as api:
        made = api.create("jupyterlab", "cpu-small", name="notebook")
        api.wait(made["id"], "running", limit_s=120)
    code = "import jupyterlab; print(6 * 7, jupyterlab.__file__)"
    ran = subprocess.run(
        [installed / "berth", "exec", "notebook", "--", "python", "-c", code],
        env={**berth.environ, "BERTH_URL": berth.url, "BERTH_TOKEN": berth.tokens["ada"]},
        cwd=berth.home, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    answer, file = ran.stdout.split()
    assert answer == "42" and own.resolve().name in Path(file).parts
