"""The check's kernels, built by a C++ compiler for the host."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from provisioning.gpu.check.compiler import KERNELS

SOURCE = Path(__file__).with_name("fake_cuda.cpp")


def compiler() -> str:
    program = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if program is None:
        pytest.skip("no C++ compiler: the kernels cannot be built for the host")
    return program


def host_build() -> Path:
    """The library; cached between runs until a source changes."""
    digest = hashlib.sha256()
    for path in sorted([*KERNELS.glob("*.c*"), *KERNELS.glob("*.h"), SOURCE]):
        digest.update(path.read_bytes())
    home = Path(tempfile.gettempdir(), f"berth-fake-cuda-{os.getuid()}-{digest.hexdigest()[:16]}")
    library = home / "libcuda.so.1"
    if not library.exists():
        home.mkdir(mode=0o700, exist_ok=True)
        half = home / f"half-{os.getpid()}"
        options = ["-std=c++17", "-O2", "-w", "-DBERTH_HOST", "-fno-strict-aliasing", "-shared", "-fPIC"]
        sources = ["-x", "c++", str(SOURCE), f"-I{KERNELS}", "-Wl,-soname,libcuda.so.1"]
        subprocess.run([compiler(), *options, *sources, "-o", str(half)], check=True)
        half.rename(library)
    return library
