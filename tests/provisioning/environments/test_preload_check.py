"""Which modules of an environment's JupyterLab are preloaded, as determined during the build."""

from __future__ import annotations

import pytest

from tests.provisioning.environments.package_index import Bench, PackageFolder

pytestmark = pytest.mark.engine
LAB = """
class LabApp:
    @classmethod
    def initialize_server(cls, argv):
        import heavy.inner
        {more}
"""
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"


def lab(packages: PackageFolder, *, heavy: str = "", more: str = "pass", top: str = "") -> None:
    packages.wheel(
        "jupyterlab",
        files={
            "jupyterlab/__init__.py": top,
            "jupyterlab/labapp.py": LAB.format(more=more),
            "heavy/__init__.py": "",
            "heavy/inner.py": heavy,
            "jupyterlab-1.0.dist-info/entry_points.txt": "[console_scripts]\njupyter-lab = jupyterlab:main\n",
        },
    )


def test_server_modules_are_recorded_for_preloading(bench: Bench, packages: PackageFolder) -> None:
    lab(packages)
    stamp = bench.build("jupyterlab")
    assert stamp.preloadable and {"heavy", "heavy.inner"} <= set(stamp.preload)


@pytest.mark.thorough("a build each")
@pytest.mark.parametrize("more", ["raise RuntimeError()", "import os; os._exit(3)", "import sys; sys.exit()"])
def test_server_failing_to_start_is_preloaded_by_import_only(
    bench: Bench, packages: PackageFolder, more: str
) -> None:
    lab(packages, more=more)
    stamp = bench.build("jupyterlab")
    assert stamp.preloadable and not stamp.preload


@pytest.mark.thorough("a build")
def test_modules_starting_threads_are_not_preloaded(bench: Bench, packages: PackageFolder) -> None:
    lab(packages, heavy=THREAD)
    stamp = bench.build("jupyterlab")
    assert stamp.preloadable and not stamp.preload


@pytest.mark.thorough("a build")
def test_jupyterlab_starting_threads_is_not_preloaded(bench: Bench, packages: PackageFolder) -> None:
    lab(packages, top=THREAD)
    assert not bench.build("jupyterlab").preloadable


@pytest.mark.thorough("a build")
def test_environment_without_jupyterlab_is_not_preloadable(bench: Bench, packages: PackageFolder) -> None:
    assert not bench.build("pip").preloadable
