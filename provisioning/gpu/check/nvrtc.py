"""NVRTC, the runtime compiler, by ctypes.

The versions of CUDA 12 and 13 can be installed side by side, while the Python bindings support one only.
Nothing here opens the driver or NVML, which can block.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

# Newest first: library paths in the packages `nvidia-cuda-nvrtc` and `nvidia-cuda-nvrtc-cu12`.
LIBRARIES = {13: "nvidia/cu13/lib/libnvrtc.so.13", 12: "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"}


class CompileError(Exception):
    """NVRTC failed, with its message."""


class Nvrtc:
    """One version of the compiler. Raises `OSError` or `CompileError` if the library is unusable."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.major = major.value
        self.version = f"{major.value}.{minor.value}"

    def _call(self, function: str, *args: object) -> None:
        status = getattr(self._library, function)(*args)
        if status != 0:
            words = self._library.nvrtcGetErrorString(status)
            raise CompileError(f"{function}: {words.decode(errors='replace') if words else status}")

    def _text(self, program: ctypes.c_void_p, field: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{field}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{field}", program, text)
        return text.raw

    def compile(self, source: bytes, name: str, options: Sequence[str]) -> bytes:
        """Return a cubin. Raises `CompileError` with the compiler's log."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None)
        try:
            words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            try:
                self._call("nvrtcCompileProgram", program, len(options), words)
            except CompileError as error:
                log = self._text(program, "ProgramLog").rstrip(b"\0 ").decode(errors="replace").strip()
                raise CompileError(log or str(error)) from error
            return self._text(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))


def _places(major: int) -> list[str]:
    installed = [Path(entry, LIBRARIES[major]) for entry in sys.path if entry]
    paths = [str(path) for path in installed if path.is_file()]
    # The system's library.
    return [*paths, Path(LIBRARIES[major]).name]


@cache
def compilers() -> tuple[Nvrtc, ...]:
    """Return all installed versions, newest first."""
    folders = []
    for major in LIBRARIES:
        for place in _places(major):
            try:
                folders.append(Nvrtc(place))
                break
            except (OSError, AttributeError, CompileError):
                continue
    return tuple(folders)
