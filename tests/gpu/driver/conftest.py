"""A machine with fake NVIDIA libraries in C (NVML, libcuda, NCCL), for whole processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provisioning.gpu.check.compiler import nvrtc_version
from provisioning.gpu.check.process import python
from provisioning.gpu.check.report import Report, schema
from provisioning.gpu.check.runner import run_check
from provisioning.gpu.check.session import Timing
from tests.gpu.check.host_build import host_build
from tests.gpu.driver.machine import GPU, LIBRARIES, RELEASES, Machine, uuid_of

HERE = Path(__file__).parent
VALIDATOR = Draft202012Validator(schema())
TIMING = Timing(term_s=0.3, watcher_silent_s=5)


def build(release: int) -> Path:
    """The folder of all libraries of a driver branch; cached between runs until a source changes."""
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
                "-lpthread",
            ]
            subprocess.run(words, check=True, timeout=120)
            half.rename(home / library)
    return home


@pytest.fixture(scope="session")
def libraries() -> dict[int, Path]:
    """The folder of all libraries by branch."""
    if sys.platform != "linux":
        pytest.skip("the stand-ins are Linux libraries")
    return {release: build(release) for release in RELEASES}


@pytest.fixture(scope="module")
def host(libraries: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """An H100 under R570, without CUDA."""
    folder = tmp_path_factory.mktemp("host") / "driver"
    machine = Machine.at(folder, libraries[570], 570, [f"gpu H100 {GPU}"])
    (machine.folder / "libcuda.so.1").unlink()
    return machine


@pytest.fixture
def machine(
    libraries: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Machine]]:
    """Creates machines; processes of this test run on the last one."""
    made: list[Machine] = []

    def make(release: int, *lines: str) -> Machine:
        folder = tmp_path / f"machine-{len(made)}"
        new_machine = Machine.at(folder, libraries[release], release, lines)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
        made.append(new_machine)
        return new_machine

    yield make
    for one in made:
        one.end()


@pytest.fixture
def with_kernels(machine: Callable[..., Machine]) -> Callable[..., Machine]:
    """Machines that can run the check's kernels."""
    if not nvrtc_version():
        pytest.skip("cuda-bindings or NVRTC is not installed")
    kernels = host_build()

    def make(release: int, *lines: str) -> Machine:
        made = machine(release, *lines)
        shutil.copy(kernels, made.folder / "kernels.so")
        return made

    return make


@pytest.fixture
def linked(with_kernels: Callable[..., Machine]) -> Iterator[Callable[..., Machine]]:
    """A node of linked GPUs; afterwards, no context may end with unreleased resources."""
    made: list[Machine] = []

    def make(count: int = 3, model: str = "H100") -> Machine:
        made.append(with_kernels(580, *(f"gpu {model} {uuid_of(number + 1)}" for number in range(count))))
        return made[-1]

    yield make
    assert [path.read_text() for machine in made for path in machine.folder.glob("left")] == []


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Report]:
    """A check of the last machine: the product's, with small sizes."""
    turns = tmp_path / "turns"
    turns.mkdir()

    def run(uuid: str, level: str = "quick", **more: Any) -> Report:
        child = python("tests.gpu.driver.small_child")
        report = run_check(uuid, level, **{"child": child, "turns": turns, "timing": TIMING, **more})
        assert [error.message for error in VALIDATOR.iter_errors(report.to_dict())] == []
        return report

    return run
