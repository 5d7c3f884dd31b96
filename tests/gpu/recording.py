"""Recordings of a real NVML: calls recorded on a machine with a GPU, and replayed without one.

    with recorded(path): ...     # on the machine
    with replayed(path): ...     # anywhere: the real `pynvml` runs over the recording

A recording is JSON: for each question (function and inputs) its answers in order; the last one is repeated.
Handles are addresses in the recorded process and are replayed unchanged. Event sets are not recorded.
"""

from __future__ import annotations

import ctypes
import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

MAX_BYTES = 1 << 16
UNKNOWN = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def _buffer(argument: Any) -> Any | None:
    """The output buffer of an argument; None for a plain value."""
    behind = getattr(argument, "_obj", argument)
    if isinstance(behind, ctypes.Array | ctypes.Structure):
        return behind
    return behind if behind is not argument else None


def _said(argument: Any) -> Any:
    """The inputs of a call as JSON."""
    buffer = _buffer(argument)
    if buffer is not None:
        return bytes(buffer)[:MAX_BYTES].hex().rstrip("0")
    if isinstance(argument, ctypes._Pointer):
        return ctypes.cast(argument, ctypes.c_void_p).value
    value = getattr(argument, "value", argument)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _question(name: str, args: tuple[Any, ...]) -> str:
    return json.dumps([name, *map(_said, args)])


class Recorder:
    """Wraps the library and records its answers."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.answers: dict[str, list[list[Any]]] = {}
        self.missing: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            self.missing.add(name)
            raise
        if name == "nvmlErrorString":
            return function  # type: ignore[no-any-return]

        def call(*args: Any) -> int:
            question = _question(name, args)
            code = int(function(*args))
            buffers = [_buffer(argument) for argument in args]
            written = [None if b is None else bytes(b)[:MAX_BYTES].hex().rstrip("0") for b in buffers]
            answers, answer = self.answers.setdefault(question, []), [code, written]
            if not answers or answers[-1] != answer:
                answers.append(answer)
            return code

        return call

    def save(self, path: Path) -> None:
        value = {"missing": sorted(self.missing), "answers": self.answers}
        path.write_bytes(gzip.compress(json.dumps(value, sort_keys=True).encode(), mtime=0))


class Replay:
    """Returns recorded answers; functions that were never called are missing in this driver."""

    def __init__(self, path: Path) -> None:
        value = json.loads(gzip.decompress(path.read_bytes()))
        self._answers: dict[str, list[list[Any]]] = value["answers"]
        self._missing = frozenset(value["missing"])
        self._at: dict[str, int] = {}
        self.unknown: list[str] = []
        """Calls for which the recording has no answer."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name in self._missing:
            raise AttributeError(name)
        if name == "nvmlErrorString":
            return lambda code: f"error {getattr(code, 'value', code)} of a recording".encode()

        def call(*args: Any) -> int:
            question = _question(name, args)
            answers = self._answers.get(question)
            if answers is None:
                self.unknown.append(question)
                return int(UNKNOWN)
            at = self._at.get(question, 0)
            self._at[question] = min(at + 1, len(answers) - 1)
            code, written = answers[at]
            for argument, content in zip(args, written, strict=True):
                buffer = _buffer(argument)
                if buffer is not None and content is not None:
                    size = ctypes.sizeof(buffer)
                    raw = bytes.fromhex(content + "0" * (len(content) % 2)).ljust(size, b"\0")[:size]
                    ctypes.memmove(ctypes.addressof(buffer), raw, size)
            return int(code)

        return call


@contextmanager
def _in_place(library: Any) -> Iterator[None]:
    before = pynvml.nvmlLib
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()


@contextmanager
def recorded(path: Path) -> Iterator[None]:
    """Record this process's calls until the end, into `path` (gzip)."""
    recorder = Recorder(pynvml.nvmlLib or ctypes.CDLL("libnvidia-ml.so.1"))
    with _in_place(recorder):
        try:
            yield
        finally:
            recorder.save(path)


@contextmanager
def replayed(path: Path) -> Iterator[Replay]:
    """Make `pynvml` use a recording."""
    replay = Replay(path)
    with _in_place(replay):
        yield replay
