"""The kernels: compiled for every architecture, and run on the host with injected faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from provisioning.gpu.check import compiler
from provisioning.gpu.check.build import LIMIT_BYTES
from provisioning.gpu.check.compiler import (
    ARCHITECTURES,
    CUBINS,
    ONLY_FOR,
    UNITS,
    NoCubin,
    arch_name,
    units_of,
)
from provisioning.gpu.check.nvrtc import compilers
from tests.gpu.check.host import MASK, Host
from tests.suite.choice import quick_of

WORDS = 5000
PACKAGED = "packaged (nvrtc 12.9)"


# --- for devices ---


@pytest.mark.parametrize(
    "capability",
    quick_of(ARCHITECTURES, [(8, 0), (9, 0)], "a compilation each; `make test` has two architectures"),
    ids=arch_name,
)
def test_every_kernel_compiles(capability: tuple[int, int]) -> None:
    if not compiler.nvrtc_version():
        pytest.skip("NVRTC is not installed")
    kernels = {"memory": "fill_mix", "scrub": "count_nonzero", "bandwidth": "copy16", "operands": "encode",
               "gemm": "gemm_reference", "tensor": "gemm_fp16", "hopper": "gemm_fp8_wg",
               "fp4": "gemm_fp4", "functions": "check_function", "atomics": "run_atomics",
               "cache": "test_shared"}  # fmt: skip
    assert ("hopper" in units_of(capability)) == (capability == (9, 0))
    assert ("fp4" in units_of(capability)) == (capability == (12, 0))
    for unit in units_of(capability):
        code = compiler.compile_unit(unit, capability)
        assert code.startswith(b"\x7fELF")
        assert f".text.{kernels[unit]}".encode() in code
        if unit == "tensor":
            assert (b".text.gemm_bf16" in code) == (capability >= (8, 0))
            assert (b".text.gemm_fp8" in code) == (capability >= (8, 9))
        shipped = compiler.cubin(unit, capability)
        assert shipped.arch == {"hopper": "sm_90a", "fp4": "sm_120a"}.get(unit, arch_name(capability))
        assert shipped.origin == PACKAGED


# Which instruction of the tensor cores a kernel has to have in its machine code. By mma.sync, FP8 is emulated
# on sm_90 and sm_100 (it becomes HMMA); there QGMMA and cuBLASLt are the ones that multiply in FP8.
INSTRUCTIONS = [
    ("tensor", (7, 5), "gemm_fp16", "HMMA.1688.F32"),
    ("tensor", (8, 0), "gemm_bf16", "HMMA.16816.F32.BF16"),
    ("tensor", (8, 0), "gemm_tf32", "HMMA.1688.F32.TF32"),
    ("tensor", (8, 9), "gemm_fp8", "QMMA.16832.F32.E4M3.E4M3"),
    ("tensor", (9, 0), "gemm_fp16", "HMMA.16816.F32"),
    ("tensor", (10, 0), "gemm_bf16", "HMMA.16816.F32.BF16"),
    ("hopper", (9, 0), "gemm_fp16_wg", "HGMMA.64x128x16.F32"),
    ("hopper", (9, 0), "gemm_bf16_wg", "HGMMA.64x128x16.F32.BF16"),
    ("hopper", (9, 0), "gemm_tf32_wg", "HGMMA.64x128x8.F32.TF32"),
    ("hopper", (9, 0), "gemm_fp8_wg", "QGMMA.64x128x32.F32.E4M3.E4M3"),
    ("tensor", (7, 5), "gemm_int8", "IMMA.8816.S8.S8"),
    ("tensor", (8, 0), "gemm_int8", "IMMA.16832.S8.S8"),
    ("tensor", (10, 0), "gemm_int8", "IMMA.16832.S8.S8"),
    ("hopper", (9, 0), "gemm_int8_wg", "IGMMA.64x128x32.S8.S8"),
    ("tensor", (12, 0), "gemm_fp8", "QMMA.16832.F32.E4M3.E4M3"),
    ("fp4", (12, 0), "gemm_fp4", "OMMA.SF.16864.F32.E2M1.E2M1.E8"),
    ("functions", (9, 0), "fill_function", "MUFU.SIN"),
    ("functions", (9, 0), "check_function", "MUFU.TANH"),
    ("atomics", (9, 0), "run_atomics", "REDG.E.MIN.S32.STRONG.GPU"),
    ("atomics", (9, 0), "run_atomics_shared", "ATOMS.CAS.64"),
    ("cache", (9, 0), "check_l1", "LDG.E.64.STRONG.SM"),
    ("cache", (9, 0), "invert_l2", "STG.E.64.STRONG.GPU"),
]


@pytest.mark.thorough("disassembles each")
@pytest.mark.parametrize(("unit", "capability", "kernel", "instruction"), INSTRUCTIONS)
def test_machine_code_contains_the_tested_instructions(
    unit: str, capability: tuple[int, int], kernel: str, instruction: str, tmp_path: Path
) -> None:
    disassembler = next(
        (p for entry in sys.path if (p := Path(entry, "nvidia/cu13/bin/nvdisasm")).is_file()), None
    )
    if disassembler is None:
        pytest.skip("nvdisasm (nvidia-cuda-nvdisasm) is not installed")
    shipped = compiler.packaged(unit, capability)
    assert shipped is not None
    code = tmp_path / "code.cubin"
    code.write_bytes(shipped.code)
    listing = subprocess.run(
        [disassembler, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    body = listing.partition(f".text.{kernel}:")[2].partition(".section")[0]
    assert instruction in {word.rstrip(";") for word in body.split()}


def test_unsupported_architecture_is_reported() -> None:
    if not compiler.nvrtc_version():
        pytest.skip("NVRTC is not installed")
    with pytest.raises(
        NoCubin, match=r"No packaged kernel .*NVRTC 1\d\.\d could not compile memory\.cu for sm_30: "
    ):
        compiler.cubin("memory", (3, 0))


# CUDA 12.2, 12.4, 12.8 and 13.0: R535, R550, R570 and R580.
@pytest.mark.parametrize("driver", [12020, 12040, 12080, 13000])
@pytest.mark.parametrize("capability", ARCHITECTURES, ids=arch_name)
def test_cubins_match_the_driver_version(capability: tuple[int, int], driver: int) -> None:
    """Drivers before R580 refuse ABI version 8, the only one of CUDA 13."""
    if capability >= (10, 0) and driver < 12080:
        with pytest.raises(NoCubin, match="this driver"):
            compiler.cubin("scrub", capability, driver)
        return
    found = list(compiler.cubins("scrub", capability, driver))
    assert found[0].origin == PACKAGED
    newest = 8 if driver >= 13000 or capability >= (10, 0) else 7
    assert compiler.elf_abi(found[1].code) == newest
    assert all(compiler.elf_abi(each.code) <= newest for each in found)
    assert [each.origin.partition(".")[0] for each in found[1:]] == (
        ["nvrtc 13", "nvrtc 12"] if driver >= 13000 else ["nvrtc 12"]
    )


def test_cubins_for_older_architectures_come_last() -> None:
    origins = [cubin.origin.partition(".")[0] for cubin in compiler.cubins("scrub", (8, 7), 13000)]
    assert origins == ["nvrtc 13", "nvrtc 12", "packaged (nvrtc 12"]


def test_both_compilers_are_installed_side_by_side() -> None:
    assert [each.major for each in compilers()] == [13, 12]


def test_packaged_kernels_are_used_for_older_drivers_without_the_older_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "compilers", lambda: compilers()[:1])
    built = compiler.cubin("scrub", (9, 0), 12040)
    assert (built.origin, compiler.elf_abi(built.code)) == (PACKAGED, 7)
    monkeypatch.setattr(compiler, "packaged", lambda unit, capability: None)
    with pytest.raises(NoCubin, match="or nvidia-cuda-nvrtc-cu12"):
        compiler.cubin("scrub", (9, 0), 12040)


def test_invalid_cubin_has_no_abi() -> None:
    assert compiler.elf_abi(b"") == compiler.elf_abi(b"\x7fELF") == compiler.elf_abi(b"PTX code here") == 0


def test_packaged_kernels_match_their_sources() -> None:
    manifest = json.loads((CUBINS / "manifest.json").read_text())
    assert set(manifest["sources"]) == {*UNITS, *ONLY_FOR}
    for unit in manifest["sources"]:
        assert manifest["sources"][unit] == compiler.source_hash(unit), (
            f"{unit}.cu has changed: python -m provisioning.gpu.check.build"
        )
    names = {f"{unit}.{arch_name(c, unit)}.cubin" for c in ARCHITECTURES for unit in units_of(c)}
    assert names == set(manifest["cubins"]) == {path.name for path in CUBINS.glob("*.cubin")}
    assert sum(path.stat().st_size for path in CUBINS.glob("*.cubin")) < LIMIT_BYTES
    for path in CUBINS.glob("*.cubin"):
        assert compiler.elf_abi(path.read_bytes()) == (8 if "sm_1" in path.name else 7), path.name


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((9, 0), "sm_90"),
        ((8, 7), "sm_86"),
        ((10, 3), "sm_100"),
        ((7, 5), "sm_75"),
        ((7, 0), None),
        ((12, 0), "sm_120"),
        ((12, 1), "sm_120"),
        ((11, 0), None),
    ],
)
def test_packaged_kernel_of_the_same_major_architecture_is_used(
    capability: tuple[int, int], arch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "compilers", tuple)
    if arch is None:
        with pytest.raises(NoCubin, match="gpu"):
            compiler.cubin("memory", capability)
    else:
        built = compiler.cubin("memory", capability)
        assert (built.arch, built.origin) == (arch, PACKAGED)


def test_architecture_specific_code_is_not_used_on_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler.cubin("fp4", (12, 0)).origin == PACKAGED
    assert compiler.packaged("fp4", (12, 1)) is None
    assert compiler.cubin("fp4", (12, 1)).arch == "sm_121a"


def test_modified_packaged_kernel_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler.packaged("scrub", (9, 0)) is not None
    for path in CUBINS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(compiler, "CUBINS", tmp_path)
    (tmp_path / "scrub.sm_90.cubin").write_bytes(b"\x7fELF")
    assert compiler.packaged("scrub", (9, 0)) is None
    monkeypatch.setattr(compiler, "source_hash", lambda unit: "another")
    assert compiler.packaged("memory", (9, 0)) is None
    (tmp_path / "manifest.json").write_text("{")
    assert compiler.packaged("memory", (9, 0)) is None


# --- on the host ---


def words(n: int = WORDS) -> NDArray[np.uint64]:
    return np.zeros(n, np.uint64)


PATTERNS = [
    ("fill_mix", (100, 7, 0), "check_mix", (100, 7, 0)),
    ("fill_mix", (100, 7, MASK), "check_mix", (100, 7, MASK)),
    ("fill_word", (0xAAAA5555,), "check_word", (100, 0xAAAA5555)),
    ("fill_word", (0xAAAA5555,), "invert_up", (100, 0xAAAA5555)),
    ("fill_word", (0xAAAA5555,), "invert_down", (100, 0xAAAA5555)),
    ("fill_walk", (100, 13, 0), "check_walk", (100, 13, 0)),
    ("fill_walk", (100, 13, MASK), "check_walk", (100, 13, MASK)),
]


@pytest.mark.parametrize(("fill", "fill_args", "check", "check_args"), PATTERNS)
@pytest.mark.parametrize(("index", "bit"), [(0, 0), (WORDS - 1, 63), (1234, 31)])
def test_bit_flip_is_found_at_its_address(
    host: Host, fill: str, fill_args: Any, check: str, check_args: Any, index: int, bit: int
) -> None:
    memory = words()
    host.run(fill, memory, WORDS, *fill_args)
    assert host.log(check, memory, WORDS, *check_args).count == 0
    host.run(fill, memory, WORDS, *fill_args)
    before = int(memory[index])
    host.run("flip_bit", memory, index, bit)
    log = host.log(check, memory, WORDS, *check_args)
    # Indexes refer to the whole memory: 100 words precede this chunk.
    assert (log.count, log.first, log.bits) == (1, 100 + index, 1 << bit)
    assert (log.index[0], log.got[0], log.want[0]) == (100 + index, before ^ (1 << bit), before)


def test_errors_are_counted_and_the_first_are_logged(host: Host) -> None:
    memory = words()
    host.run("fill_mix", memory, WORDS, 0, 1, 0)
    memory[10:110] ^= np.uint64(6)
    log = host.log("check_mix", memory, WORDS, 0, 1, 0)
    assert (log.count, log.first, log.bits, log.kept) == (100, 10, 6, 100)
    assert list(log.index) == list(range(10, 26))


def test_every_address_has_a_unique_value(host: Host) -> None:
    memory, other = words(), words()
    host.run("fill_mix", memory, WORDS, 0, 1, 0)
    host.run("fill_mix", other, WORDS, WORDS, 1, 0)
    assert len(np.unique(np.concatenate([memory, other]))) == 2 * WORDS


@pytest.mark.parametrize("line", [0, 3, 11])
def test_stuck_address_line_is_found_by_the_address_pattern_only(host: Host, line: int) -> None:
    """Two addresses share one cell, which a uniform pattern cannot detect."""

    def alias(memory: NDArray[np.uint64]) -> None:
        at = np.arange(WORDS)
        memory[:] = memory[at & ~(1 << line)]

    memory = words()
    host.run("fill_word", memory, WORDS, 0x5555)
    alias(memory)
    assert host.log("check_word", memory, WORDS, 0, 0x5555).count == 0
    host.run("fill_mix", memory, WORDS, 0, 1, 0)
    alias(memory)
    assert host.log("check_mix", memory, WORDS, 0, 1, 0).count == np.count_nonzero(
        np.arange(WORDS) >> line & 1
    )


def test_moving_inversions_invert(host: Host) -> None:
    memory = words()
    host.run("fill_word", memory, WORDS, 5)
    host.log("invert_up", memory, WORDS, 0, 5)
    assert (memory == np.uint64(MASK ^ 5)).all()
    host.log("invert_down", memory, WORDS, 0, MASK ^ 5)
    assert (memory == np.uint64(5)).all()


def test_inversions_run_upwards_and_downwards(host: Host) -> None:
    for kernel, order in (("invert_up", [10, 20]), ("invert_down", [20, 10])):
        memory = words()
        memory[[10, 20]] = np.uint64(1)
        assert list(host.log(kernel, memory, WORDS, 0, 0).index)[:2] == order


def test_walking_bits_visit_every_bit_of_every_word(host: Host) -> None:
    memory, seen = words(64), words(64)
    for step in range(64):
        host.run("fill_walk", memory, 64, 0, step, 0)
        assert all(int(w).bit_count() == 1 for w in memory)
        seen |= memory
    assert (seen == np.uint64(MASK)).all()


def test_modulo_20_pattern(host: Host) -> None:
    memory = words()
    host.run("fill_modulo", memory, WORDS, 3, 6, 0xF0, 0)
    host.run("fill_modulo", memory, WORDS, 3, 6, 0xF0, 1)
    mine = (np.arange(WORDS) + 3) % 20 == 6
    assert (memory[mine] == np.uint64(0xF0)).all()
    assert (memory[~mine] == np.uint64(MASK ^ 0xF0)).all()
    assert host.log("check_modulo", memory, WORDS, 3, 6, 0xF0).count == 0
    memory[4] ^= np.uint64(1)  # a neighbor, which is not checked
    assert host.log("check_modulo", memory, WORDS, 3, 6, 0xF0).count == 0
    memory[23] ^= np.uint64(1)
    log = host.log("check_modulo", memory, WORDS, 3, 6, 0xF0)
    assert (log.count, log.first) == (1, 26)


@pytest.mark.parametrize("planted", [0, 1, 777])
def test_scrub_counts_and_combines_nonzero_words(host: Host, planted: int) -> None:
    memory, out = words(), words(1)
    memory[np.arange(planted) * 5] = np.uint64(1 << 40)
    host.run("count_nonzero", memory, WORDS, out)
    assert out[0] == planted
    out[0] = 0
    host.run("or_reduce", memory, WORDS, out)
    assert out[0] == (1 << 40 if planted else 0)


def test_copy_read_and_write_kernels(host: Host) -> None:
    source, target, out = words(2000), words(2000), words(1)
    host.run("fill_mix", source, 2000, 0, 9, 0)
    host.run("copy16", target, source, 999)
    assert (target[:1998] == source[:1998]).all()
    assert not target[1998:].any()
    host.run("read16", source, 1000, out)
    assert out[0] == np.bitwise_xor.reduce(source)
    host.run("write16", target, 1000, 77)
    assert host.log("check16", target, 1000, 77).count == 0
    target[501] ^= np.uint64(8)
    log = host.log("check16", target, 1000, 77)
    assert (log.count, log.first, log.bits) == (1, 501, 8)


def test_gate_opens_or_times_out(host: Host) -> None:
    flags = np.array([1, 0], np.uint32)
    host.run("gate", flags, 10**9, flags[1:])
    assert flags[1] == 1
    flags[:] = 0
    host.run("gate", flags, 1_000_000, flags[1:])
    assert flags[1] == 2
