"""From kernel source to a cubin for one architecture: by NVRTC, else from the package.

A cubin and not PTX, because an older driver refuses the PTX of a newer compiler. Nothing here needs a
device. `Unbuildable` says what is missing and what to install.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parent / "kernels"
CUBINS = KERNELS / "cubin"
UNITS = ("memory", "scrub", "bandwidth", "operands", "gemm", "tensor")
ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0))


class Unbuildable(Exception):
    """No cubin for this architecture can be had; the text names the fix."""


@dataclass(frozen=True, slots=True)
class Cubin:
    unit: str
    arch: str
    code: bytes
    origin: str
    """`nvrtc 13.5` or `packaged`."""


def arch_name(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def source_hash(unit: str) -> str:
    """Hash of everything that a device build of `unit` reads."""
    digest = hashlib.sha256()
    for path in (KERNELS / "common.cuh", KERNELS / f"{unit}.cu"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def nvrtc_version() -> str:
    """`13.5`, or an empty string where NVRTC or its bindings are not installed."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception:
        # ImportError, or whatever the loader raises where the library is missing.
        return ""
    return f"{major}.{minor}" if int(status) == 0 else ""


def compile_unit(unit: str, capability: tuple[int, int]) -> bytes:
    """A cubin of `unit` by NVRTC. Raises `Unbuildable` with the compiler's words."""
    if not nvrtc_version():
        raise Unbuildable("NVRTC is not installed. Install the `gpu` extra: pip install 'berth[gpu]'.")
    # By the bindings alone: cuda-core would open the driver and NVML on the way, which can block.
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")

    def call(function: str, *args: Any) -> Any:
        status, *values = getattr(nvrtc, function)(*args)
        if int(status) != 0:
            raise Unbuildable(f"{function}: {getattr(status, 'name', status)}")
        return values[0] if len(values) == 1 else None

    source = (KERNELS / f"{unit}.cu").read_bytes()
    options = [f"-arch={arch_name(capability)}".encode(), f"-I{KERNELS}".encode(), b"-std=c++17"]
    program = call("nvrtcCreateProgram", source, f"{unit}.cu".encode(), 0, [], [])
    try:
        try:
            call("nvrtcCompileProgram", program, len(options), options)
        except Unbuildable as error:
            words = b" " * int(call("nvrtcGetProgramLogSize", program))
            call("nvrtcGetProgramLog", program, words)
            text = words.rstrip(b"\0 ").decode(errors="replace").strip()
            raise Unbuildable(
                f"NVRTC refused {unit}.cu for {arch_name(capability)}: {text or error}"
            ) from error
        code = b" " * int(call("nvrtcGetCUBINSize", program))
        call("nvrtcGetCUBIN", program, code)
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def packaged(unit: str, capability: tuple[int, int]) -> Cubin | None:
    """The shipped cubin that runs on `capability`: the same major architecture, an equal or lower minor one.

    None where there is none, or where its source has changed since it was built.
    """
    try:
        manifest = json.loads((CUBINS / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if manifest.get("sources", {}).get(unit) != source_hash(unit):
        return None
    major, minor = capability
    for known in sorted(ARCHITECTURES, reverse=True):
        if known[0] != major or known[1] > minor:
            continue
        name = f"{unit}.{arch_name(known)}.cubin"
        try:
            code = (CUBINS / name).read_bytes()
        except OSError:
            continue
        if hashlib.sha256(code).hexdigest() == manifest.get("cubins", {}).get(name):
            return Cubin(unit, arch_name(known), code, "packaged")
    return None


def cubin(unit: str, capability: tuple[int, int]) -> Cubin:
    """The code of `unit` for a device: compiled here, else the shipped one. Raises `Unbuildable`."""
    try:
        code = compile_unit(unit, capability)
    except Unbuildable as refused:
        shipped = packaged(unit, capability)
        if shipped is None:
            raise Unbuildable(
                f"{refused} No packaged kernel fits {arch_name(capability)} either."
            ) from refused
        return shipped
    return Cubin(unit, arch_name(capability), code, f"nvrtc {nvrtc_version()}")
