"""Build or find a cubin for one architecture: from the package, else by NVRTC.

Cubins instead of PTX, because older drivers refuse the PTX of newer compilers. They also refuse cubins of a
newer CUDA, so there are two compilers, and packaged cubins use the older one. No device is needed.
`NoCubin` names the missing part and the package to install.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.gpu.check.nvrtc import CompileError, Nvrtc, compilers

KERNELS = Path(__file__).parent / "kernels"
CUBINS = KERNELS / "cubin"
UNITS = ("memory", "scrub", "bandwidth", "operands", "gemm", "functions", "atomics", "cache", "tensor")
# These use instructions that only one major architecture has, so they are built for `sm_90a` or `sm_120a`.
ONLY_FOR = {"hopper": 9, "fp4": 12}
CUDA_13 = 13000
BLACKWELL = (10, 0)
BLACKWELL_DRIVER = 12080
ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))


# Volta has tensor cores, but other instructions for them.
TENSOR_SINCE = (7, 5)


class NoCubin(Exception):
    """No cubin is available for this architecture; the text names the fix."""


@dataclass(frozen=True, slots=True)
class Cubin:
    unit: str
    arch: str
    code: bytes
    origin: str
    """`nvrtc 13.5` or `packaged (nvrtc 12.9)`."""


def units_of(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the units that a device of this compute capability can run."""
    common = (unit for unit in UNITS if unit != "tensor" or capability >= TENSOR_SINCE)
    return (*common, *(unit for unit, only in ONLY_FOR.items() if only == capability[0]))


def arch_name(capability: tuple[int, int], unit: str = "") -> str:
    """Return `sm_90`, or `sm_90a` for a unit of `ONLY_FOR`."""
    return f"sm_{capability[0]}{capability[1]}{'a' if unit in ONLY_FOR else ''}"


def source_hash(unit: str) -> str:
    """Return the hash of all sources of `unit`."""
    digest = hashlib.sha256()
    for path in (*sorted(KERNELS.glob("*.cuh")), KERNELS / f"{unit}.cu"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def nvrtc_version() -> str:
    """Return the newest NVRTC's version, such as `13.5`, or an empty string."""
    return next((compiler.version for compiler in compilers()), "")


def elf_abi(code: bytes) -> int:
    """Return the ABI version of a cubin: 7, or 8 from CUDA 13 and for Blackwell; 0 if it is not ELF."""
    return code[8] if code[:4] == b"\x7fELF" and len(code) > 8 else 0


def loads(code: bytes, capability: tuple[int, int], driver_version: int) -> bool:
    """Return whether a driver version (13000 is CUDA 13.0) should accept a cubin.

    Drivers before R580 refuse ABI 8, except for architectures that required it since R570.
    """
    since = BLACKWELL_DRIVER if capability >= BLACKWELL else CUDA_13
    return elf_abi(code) < 8 or driver_version >= since


def compile_unit(unit: str, capability: tuple[int, int], compiler: Nvrtc | None = None) -> bytes:
    """Compile `unit` with NVRTC, by default the newest. Raises `NoCubin` with its message."""
    if compiler is None:
        compiler = next(iter(compilers()), None)
    if compiler is None:
        raise NoCubin("NVRTC is not installed. Install the `gpu` extra: pip install 'berth[gpu]'.")
    source = (KERNELS / f"{unit}.cu").read_bytes()
    options = (f"-arch={arch_name(capability, unit)}", f"-I{KERNELS}", "-std=c++17")
    try:
        return compiler.compile(source, f"{unit}.cu", options)
    except CompileError as error:
        raise NoCubin(
            f"NVRTC {compiler.version} could not compile {unit}.cu for {arch_name(capability, unit)}: {error}"
        ) from error


def packaged(unit: str, capability: tuple[int, int]) -> Cubin | None:
    """Return the packaged cubin that runs on `capability`, or None.

    It has the same major and an equal or lower minor architecture; units of `ONLY_FOR` the same minor. None
    if there is none or its source changed since it was built.
    """
    try:
        manifest = json.loads((CUBINS / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if manifest.get("sources", {}).get(unit) != source_hash(unit):
        return None
    major, minor = capability
    for architecture in sorted(ARCHITECTURES, reverse=True):
        if architecture[0] != major or architecture[1] > minor or unit not in units_of(architecture):
            continue
        if unit in ONLY_FOR and architecture != capability:
            continue
        name = f"{unit}.{arch_name(architecture, unit)}.cubin"
        try:
            code = (CUBINS / name).read_bytes()
        except OSError:
            continue
        if hashlib.sha256(code).hexdigest() == manifest.get("cubins", {}).get(name):
            return Cubin(unit, arch_name(architecture, unit), code, f"packaged (nvrtc {manifest['nvrtc']})")
    return None


def cubins(unit: str, capability: tuple[int, int], driver_version: int = CUDA_13) -> Iterator[Cubin]:
    """Yield code of `unit` that a driver may accept, best first; each is compiled on demand.

    First the packaged cubin of exactly this architecture, since compiling all units takes 2 s. Then those by
    NVRTC of the driver's CUDA or older; last the packaged one of an older architecture. Raises `NoCubin`
    at the end if there was none.
    """
    shipped = packaged(unit, capability)
    if shipped is not None and not loads(shipped.code, capability, driver_version):
        shipped = None
    native = shipped is not None and shipped.arch == arch_name(capability, unit)
    if shipped is not None and native:
        yield shipped
    refused: list[str] = []
    yielded = native
    for compiler in compilers():
        if compiler.major * 1000 > driver_version:
            refused.append(
                f"Kernels of NVRTC {compiler.version} need a driver for CUDA {compiler.major}.0 or later. "
                "Install a newer driver or nvidia-cuda-nvrtc-cu12."
            )
            continue
        try:
            code = compile_unit(unit, capability, compiler)
        except NoCubin as error:
            refused.append(str(error))
            continue
        if loads(code, capability, driver_version):
            yielded = True
            yield Cubin(unit, arch_name(capability, unit), code, f"nvrtc {compiler.version}")
        else:
            refused.append(f"The driver is too old for {arch_name(capability)}. Install a newer driver.")
    if shipped is not None and not native:
        yield shipped
    elif not yielded:
        if not compilers():
            refused = ["NVRTC is not installed. Install the `gpu` extra: pip install 'berth[gpu]'."]
        arch = arch_name(capability)
        raise NoCubin(f"No packaged kernel supports {arch} with this driver. {' '.join(refused)}")


def cubin(unit: str, capability: tuple[int, int], driver_version: int = CUDA_13) -> Cubin:
    """Return the best code of `unit` for a device. Raises `NoCubin`."""
    return next(cubins(unit, capability, driver_version))
