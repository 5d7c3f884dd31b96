"""NCCL by ctypes, from the `gpu-nccl` extra or the system: all-reduce across GPUs."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_void_p
from pathlib import Path
from typing import Any

LIBRARY = "libnccl.so.2"
UNIQUE_ID_BYTES = 128
_SUM = 0
_IN_PROGRESS = 7
# ncclDataType_t of nccl.h.
_TYPES: Mapping[str, int] = {"uint64": 5, "fp32": 7}

# NCCL's messages go to the process's stderr, which is kept, and not to a log file.
MESSAGES: Mapping[str, str] = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr"}
# A single node needs only loopback, no network plugin and no RAS service. NCCL reads its configuration files
# only for variables that are unset.
ONE_NODE: Mapping[str, str] = {
    **MESSAGES,
    "NCCL_CONF_FILE": "/dev/null",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_TUNER_PLUGIN": "none",
    "NCCL_RAS_ENABLE": "0",
}


class NcclError(Exception):
    """A failed call: `ncclCommInitAll: 2 (unhandled system error): …`. `number` is its ncclResult_t."""

    def __init__(self, call: str, number: int, text: str, last: str) -> None:
        super().__init__(f"{call}: {number} ({text}){f': {last}' if last else ''}")
        self.call = call
        self.number = number


class UniqueId(ctypes.Structure):
    """ncclUniqueId, passed by value."""

    _fields_ = (("internal", c_ubyte * UNIQUE_ID_BYTES),)


_ARGUMENTS: Mapping[str, Sequence[Any]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitAll": (POINTER(c_void_p), c_int, POINTER(c_int)),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, UniqueId, c_int),
    "ncclCommDestroy": (c_void_p,),
    "ncclCommAbort": (c_void_p,),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
}


def of_wheel() -> Path | None:
    """Return the library of NVIDIA's wheel, or None. Imports nothing of CUDA."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder, "lib", LIBRARY)
        if path.is_file():
            return path
    return None


def find() -> Any | None:
    """Return the library, or None. The wheel's has precedence over the system's."""
    for name in filter(None, (of_wheel(), LIBRARY)):
        try:
            return ctypes.CDLL(str(name))
        except OSError:
            continue
    return None


class Nccl:
    """Calls of the library. A communicator is an address. Every failed call raises `NcclError`.

    Calls have no timeout: waiting for other ranks may block forever.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = list(arguments), c_int
        library.ncclGetErrorString.argtypes, library.ncclGetErrorString.restype = [c_int], c_char_p
        library.ncclGetLastError.argtypes, library.ncclGetLastError.restype = [c_void_p], c_char_p
        number = c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        # 2.9 and later encode 2.32.3 as 23203; earlier versions 2.8.3 as 2803.
        factor = 10000 if number.value >= 10000 else 1000
        major, rest = divmod(number.value, factor)
        self.version = f"nccl {major}.{rest // 100}.{rest % 100}"

    def _call(self, name: str, *args: Any) -> None:
        status: int = getattr(self._library, name)(*args)
        if status != 0:
            raise NcclError(name, status, self.error_string(status), self.last_error())

    def error_string(self, number: int) -> str:
        """Return the library's text for a result code."""
        text: bytes | None = self._library.ncclGetErrorString(number)
        return (text or b"").decode(errors="replace")

    def last_error(self) -> str:
        """Return the library's last error message in this process; empty if there is none."""
        text: bytes | None = self._library.ncclGetLastError(None)
        return (text or b"").decode(errors="replace").strip()[:300]

    def unique_id(self) -> bytes:
        """Return the id shared by all ranks of a group: 128 bytes.

        This process waits for the others at the address in it, or at NCCL_COMM_ID.
        """
        unique = UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique.internal)

    def ranks(self, ordinals: Sequence[int]) -> list[int]:
        """Return a communicator for each visible device, all in this process, in this order."""
        communicators, devices = (c_void_p * len(ordinals))(), (c_int * len(ordinals))(*ordinals)
        self._call("ncclCommInitAll", communicators, len(ordinals), devices)
        return [int(communicator or 0) for communicator in communicators]

    def rank(self, count: int, rank: int, unique_id: bytes) -> int:
        """Return the communicator of the current context as one of `count` ranks; waits for the others."""
        if len(unique_id) != UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(unique_id)}")
        communicator = c_void_p()
        self._call(
            "ncclCommInitRank", ctypes.byref(communicator), count, UniqueId.from_buffer_copy(unique_id), rank
        )
        return int(communicator.value or 0)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Submit calls for several communicators of this process together, at the end of the block."""
        self._call("ncclGroupStart")
        try:
            yield
        except BaseException:
            # A started group must be ended; the first error is raised.
            self._library.ncclGroupEnd()
            raise
        self._call("ncclGroupEnd")

    def all_reduce(self, comm: int, send: int, recv: int, count: int, dtype: str, stream: int) -> None:
        """Queue the sum over all ranks of `count` values (`uint64`, `fp32`); every rank gets it."""
        self._call("ncclAllReduce", send, recv, count, _TYPES[dtype], _SUM, comm, stream)

    def check(self, comm: int) -> None:
        """Raise asynchronous errors of a communicator."""
        number = c_int()
        self._call("ncclCommGetAsyncError", comm, ctypes.byref(number))
        if number.value not in (0, _IN_PROGRESS):
            raise NcclError("all ranks", number.value, self.error_string(number.value), self.last_error())

    def close(self, comm: int) -> None:
        """Free a communicator after its queued work."""
        self._call("ncclCommDestroy", comm)

    def abort(self, comm: int) -> None:
        """Free a communicator and abort its pending work."""
        self._call("ncclCommAbort", comm)
