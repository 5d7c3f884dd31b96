"""A machine whose NVIDIA driver is none, for whole processes: `libnvidia-ml.so.1` and `libcuda.so.1` in C."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.driver.machine import LIBRARIES, RELEASES, Machine

HERE = Path(__file__).parent


def build(release: int) -> Path:
    """The folder of both libraries of a driver's branch; kept between runs as long as no source changes."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: the stand-ins for the driver's libraries cannot be built")
    digest = hashlib.sha256()
    for path in sorted([*HERE.glob("*.c"), *HERE.glob("*.h")]):
        digest.update(path.read_bytes())
    name = f"berth-driver-{os.getuid()}-{digest.hexdigest()[:16]}-{release}"
    home = Path(tempfile.gettempdir(), name)
    home.mkdir(mode=0o700, exist_ok=True)
    for library, source in LIBRARIES.items():
        if not (home / library).exists():
            half = home / f"half-{os.getpid()}"
            options = ["-std=gnu11", "-O1", "-fvisibility=hidden", f"-DRELEASE={release}", "-shared", "-fPIC"]
            words = [
                compiler,
                *options,
                f"-Wl,-soname,{library}",
                "-o",
                str(half),
                str(HERE / source),
                "-ldl",
            ]
            subprocess.run(words, check=True, timeout=120)
            half.rename(home / library)
    return home


@pytest.fixture(scope="session")
def libraries() -> dict[int, Path]:
    """The folder of both libraries by branch."""
    if sys.platform != "linux":
        pytest.skip("the stand-ins are Linux libraries")
    return {release: build(release) for release in RELEASES}


@pytest.fixture
def machine(
    libraries: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Machine]]:
    """Makes machines; what is started in this test runs on the last one."""
    made: list[Machine] = []

    def make(release: int, *lines: str) -> Machine:
        folder = tmp_path / f"machine-{len(made)}"
        one = Machine.at(folder, libraries[release], release, lines)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
        made.append(one)
        return one

    yield make
    for one in made:
        one.end()
