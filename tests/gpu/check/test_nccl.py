"""NCCL by ctypes, against the real library if installed, which needs no GPU here."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioning.gpu.check import nccl
from provisioning.gpu.check.nccl import Nccl, NcclError


@pytest.fixture(scope="module")
def real() -> Nccl:
    library = nccl.find()
    if library is None:
        pytest.skip("NCCL is not installed: pip install nvidia-nccl-cu12")
    return Nccl(library)


def test_version_and_error_texts(real: Nccl) -> None:
    assert re.fullmatch(r"nccl 2\.\d+\.\d+", real.version)
    assert real.error_string(4).startswith("invalid argument")
    assert len({real.error_string(number) for number in range(8)}) == 8


def test_unique_ids_differ(real: Nccl) -> None:
    first, second = real.unique_id(), real.unique_id()
    assert len(first) == len(second) == nccl.UNIQUE_ID_BYTES
    assert first != second


def test_failed_call_names_function_and_error(real: Nccl) -> None:
    """An invalid rank; without a driver NCCL reports that first."""
    with pytest.raises(
        NcclError, match=r"^ncclCommInitRank: [14] \((invalid argument|unhandled cuda)"
    ) as caught:
        real.rank(1, 7, real.unique_id())
    assert (caught.value.call, caught.value.number in (1, 4)) == ("ncclCommInitRank", True)


class Recorder:
    """A library that records its calls and returns configured results."""

    def __init__(self, version: int = 23203, **results: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._version, self._results = version, results
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def function(*args: Any) -> Any:
            if name == "ncclGetErrorString":
                return b"invalid usage"
            if name == "ncclGetLastError":
                return b" two of them are the same device \n"
            self.calls.append((name, *args))
            if name == "ncclGetVersion":
                args[0]._obj.value = self._version
            if name == "ncclCommInitAll":
                for place in range(args[1]):
                    args[0][place] = 0x1000 + args[2][place]
            return self._results.get(name, 0)

        return self._made.setdefault(name, function)


@pytest.mark.parametrize(
    ("number", "text"), [(23203, "nccl 2.32.3"), (21805, "nccl 2.18.5"), (2804, "nccl 2.8.4")]
)
def test_version_number_is_decoded(number: int, text: str) -> None:
    assert Nccl(Recorder(number)).version == text


def test_call_signatures_match_the_header() -> None:
    library = Recorder()
    made = Nccl(library)
    assert library.ncclAllReduce.argtypes[2] is ctypes.c_size_t
    # By value: its size in the call is that of the structure, and not that of a pointer.
    assert ctypes.sizeof(library.ncclCommInitRank.argtypes[2]) == 128
    assert made.ranks([2, 0]) == [0x1002, 0x1000]
    with made.group():
        made.all_reduce(0x1002, 16, 32, 5, "uint64", 7)
    made.close(0x1002)
    made.abort(0x1000)
    assert library.calls[-5:] == [
        ("ncclGroupStart",), ("ncclAllReduce", 16, 32, 5, 5, 0, 0x1002, 7), ("ncclGroupEnd",),
        ("ncclCommDestroy", 0x1002), ("ncclCommAbort", 0x1000),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="128 bytes"):
        made.rank(2, 0, b"short")


def test_group_is_ended_after_an_error() -> None:
    library = Recorder(ncclAllReduce=5)
    made = Nccl(library)
    with pytest.raises(NcclError) as caught, made.group():
        made.all_reduce(1, 16, 32, 5, "fp32", 7)
    assert str(caught.value) == "ncclAllReduce: 5 (invalid usage): two of them are the same device"
    assert library.calls[-1] == ("ncclGroupEnd",)


@pytest.mark.parametrize("asked", [0, 7, 6])
def test_background_error_is_reported(asked: int) -> None:
    library = Recorder()
    made = Nccl(library)

    def answer(comm: int, number: Any) -> int:
        number._obj.value = asked
        return 0

    library._made["ncclCommGetAsyncError"] = answer
    if asked != 6:
        made.check(1)
        return
    with pytest.raises(NcclError, match=r"^all ranks: 6 \(invalid usage\)"):
        made.check(1)


def test_library_of_the_wheel_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    opened: list[str] = []

    def load(name: str) -> str:
        opened.append(name)
        if name != "libnccl.so.2":
            raise OSError("not for this machine")
        return "the system's"

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert nccl.find() == "the system's"
    assert opened == [str(path), "libnccl.so.2"]


def test_missing_library_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(nccl, "of_wheel", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert nccl.find() is None
