"""From kernel source to a cubin for one architecture: from the package, else by NVRTC.

A cubin and not PTX, because an older driver refuses the PTX of a newer compiler. It refuses the cubins of a
newer CUDA as well, so there are two compilers, and what is shipped is by the older one. Nothing here needs a
device. `Unbuildable` says what is missing and what to install.
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
UNITS = ("memory", "scrub", "bandwidth", "operands", "gemm", "tensor")
# By instructions that one architecture has and no later one: their code is for `sm_90a`.
ONLY_FOR = {"hopper": (9, 0)}
CUDA_13 = 13000
BLACKWELL = (10, 0)
BLACKWELL_DRIVER = 12080
ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0))


class Unbuildable(Exception):
    """No cubin for this architecture can be had; the text names the fix."""


@dataclass(frozen=True, slots=True)
class Cubin:
    unit: str
    arch: str
    code: bytes
    origin: str
    """`nvrtc 13.5` or `packaged (nvrtc 12.9)`."""


def units_of(capability: tuple[int, int]) -> tuple[str, ...]:
    """The units that a device of this compute capability can run."""
    return (*UNITS, *(unit for unit, only in ONLY_FOR.items() if only == capability))


def arch_name(capability: tuple[int, int], unit: str = "") -> str:
    """`sm_90`, or `sm_90a` for a unit whose instructions only that architecture has."""
    return f"sm_{capability[0]}{capability[1]}{'a' if unit in ONLY_FOR else ''}"


def source_hash(unit: str) -> str:
    """Hash of everything that a device build of `unit` reads."""
    digest = hashlib.sha256()
    for path in (KERNELS / "common.cuh", KERNELS / f"{unit}.cu"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def nvrtc_version() -> str:
    """`13.5`, that of the newest there is, or an empty string where none is installed."""
    return next((each.version for each in compilers()), "")


def elf_abi(code: bytes) -> int:
    """The version of the ABI that a cubin is written in: 7 or, of CUDA 13 and for Blackwell, 8."""
    return code[8] if code[:4] == b"\x7fELF" and len(code) > 8 else 0


def loads(code: bytes, capability: tuple[int, int], driver_version: int) -> bool:
    """Whether a driver (13000 is CUDA 13.0) can be expected to take a cubin.

    Drivers before R580 refuse ABI 8, but for architectures that have had no other since R570.
    """
    since = BLACKWELL_DRIVER if capability >= BLACKWELL else CUDA_13
    return elf_abi(code) < 8 or driver_version >= since


def compile_unit(unit: str, capability: tuple[int, int], compiler: Nvrtc | None = None) -> bytes:
    """A cubin of `unit` by NVRTC, the newest where none is named. Raises `Unbuildable` with its words."""
    if compiler is None:
        compiler = next(iter(compilers()), None)
    if compiler is None:
        raise Unbuildable("NVRTC is not installed. Install the `gpu` extra: pip install 'berth[gpu]'.")
    source = (KERNELS / f"{unit}.cu").read_bytes()
    options = (f"-arch={arch_name(capability, unit)}", f"-I{KERNELS}", "-std=c++17")
    try:
        return compiler.compile(source, f"{unit}.cu", options)
    except CompileError as error:
        raise Unbuildable(
            f"NVRTC {compiler.version} refused {unit}.cu for {arch_name(capability, unit)}: {error}"
        ) from error


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
        if known[0] != major or known[1] > minor or unit not in units_of(known):
            continue
        name = f"{unit}.{arch_name(known, unit)}.cubin"
        try:
            code = (CUBINS / name).read_bytes()
        except OSError:
            continue
        if hashlib.sha256(code).hexdigest() == manifest.get("cubins", {}).get(name):
            return Cubin(unit, arch_name(known, unit), code, f"packaged (nvrtc {manifest['nvrtc']})")
    return None


def cubins(unit: str, capability: tuple[int, int], driver_version: int = CUDA_13) -> Iterator[Cubin]:
    """All code of `unit` that a driver may take, the likeliest first; each is compiled when it is asked for.

    The shipped one, if it is for this very architecture: compiling all units takes two seconds. Then by the
    NVRTC of the driver's own CUDA or an older one; last the one that is shipped for an older architecture.
    Raises `Unbuildable` at its end if there was none.
    """
    shipped = packaged(unit, capability)
    if shipped is not None and not loads(shipped.code, capability, driver_version):
        shipped = None
    native = shipped is not None and shipped.arch == arch_name(capability, unit)
    if shipped is not None and native:
        yield shipped
    refused: list[str] = []
    found = native
    for compiler in compilers():
        if compiler.major * 1000 > driver_version:
            refused.append(
                f"Drivers before CUDA {compiler.major}.0 do not take what NVRTC {compiler.version} makes; "
                "install nvidia-cuda-nvrtc-cu12."
            )
            continue
        try:
            code = compile_unit(unit, capability, compiler)
        except Unbuildable as error:
            refused.append(str(error))
            continue
        if loads(code, capability, driver_version):
            found = True
            yield Cubin(unit, arch_name(capability, unit), code, f"nvrtc {compiler.version}")
        else:
            refused.append(f"The driver is too old for {arch_name(capability)}; install a newer one.")
    if shipped is not None and not native:
        yield shipped
    elif not found:
        if not compilers():
            refused = ["NVRTC is not installed. Install the `gpu` extra: pip install 'berth[gpu]'."]
        arch = arch_name(capability)
        raise Unbuildable(f"{' '.join(refused)} No packaged kernel fits {arch} and this driver either.")


def cubin(unit: str, capability: tuple[int, int], driver_version: int = CUDA_13) -> Cubin:
    """The likeliest code of `unit` for a device. Raises `Unbuildable`."""
    return next(cubins(unit, capability, driver_version))
