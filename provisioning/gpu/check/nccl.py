"""NCCL by ctypes, where the `gpu-nccl` extra or the system has it: sums over GPUs, as training makes them."""

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

# Its own words go with what the process says, where they are kept, and not into anybody's log.
MESSAGES: Mapping[str, str] = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr"}
# One node alone needs no network but its own loop, no plugin for one, and nobody who asks it how it is. NCCL
# reads more of its own variables from files, but for those that are set.
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
    """A call failed: `ncclCommInitAll: 2 (unhandled system error): …`. `number` is its ncclResult_t."""

    def __init__(self, call: str, number: int, text: str, last: str) -> None:
        super().__init__(f"{call}: {number} ({text}){f': {last}' if last else ''}")
        self.call = call
        self.number = number


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is handed over by value."""

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
    """Where NVIDIA's wheel has put the library; None without one. Nothing of CUDA is imported."""
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
    """The library, or None where it is not installed. The wheel's comes before the system's."""
    for name in filter(None, (of_wheel(), LIBRARY)):
        try:
            return ctypes.CDLL(str(name))
        except OSError:
            continue
    return None


class Nccl:
    """The library's calls. A communicator is an address; every failed call raises `NcclError`.

    None of the calls has an end of its own: whoever waits for other ranks may wait for ever.
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
        # Since 2.9 as 2 32 03; it was 2 8 3 before.
        of = 10000 if number.value >= 10000 else 1000
        major, rest = divmod(number.value, of)
        self.version = f"nccl {major}.{rest // 100}.{rest % 100}"

    def _call(self, name: str, *args: Any) -> None:
        status: int = getattr(self._library, name)(*args)
        if status != 0:
            raise NcclError(name, status, self.error_string(status), self.last_error())

    def error_string(self, number: int) -> str:
        """What the library calls a result."""
        text: bytes | None = self._library.ncclGetErrorString(number)
        return (text or b"").decode(errors="replace")

    def last_error(self) -> str:
        """The library's words for its last error in this process; empty without one."""
        text: bytes | None = self._library.ncclGetLastError(None)
        return (text or b"").decode(errors="replace").strip()[:300]

    def unique_id(self) -> bytes:
        """What all ranks of one group have to be given: 128 bytes.

        This process waits for the others at the address in it, or at that of NCCL_COMM_ID.
        """
        made = UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made.internal)

    def ranks(self, ordinals: Sequence[int]) -> list[int]:
        """A communicator for each of these visible devices, all in this process, in this order."""
        made, devices = (c_void_p * len(ordinals))(), (c_int * len(ordinals))(*ordinals)
        self._call("ncclCommInitAll", made, len(ordinals), devices)
        return [int(each or 0) for each in made]

    def rank(self, of: int, rank: int, unique_id: bytes) -> int:
        """The communicator of the device whose context is current, as one of `of`; waits for the others."""
        if len(unique_id) != UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, and not {len(unique_id)}")
        made = c_void_p()
        self._call("ncclCommInitRank", ctypes.byref(made), of, UniqueId.from_buffer_copy(unique_id), rank)
        return int(made.value or 0)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Calls for several communicators of this process are handed over together, at the block's end."""
        self._call("ncclGroupStart")
        try:
            yield
        except BaseException:
            # What was begun has to be ended; the first error is the one that counts.
            self._library.ncclGroupEnd()
            raise
        self._call("ncclGroupEnd")

    def all_reduce(self, comm: int, send: int, recv: int, count: int, dtype: str, stream: int) -> None:
        """Queues the sum over all ranks of `count` values (`uint64`, `fp32`), which each of them then has."""
        self._call("ncclAllReduce", send, recv, count, _TYPES[dtype], _SUM, comm, stream)

    def check(self, comm: int) -> None:
        """Raises what went wrong with a communicator in the background."""
        number = c_int()
        self._call("ncclCommGetAsyncError", comm, ctypes.byref(number))
        if number.value not in (0, _IN_PROGRESS):
            raise NcclError("all ranks", number.value, self.error_string(number.value), self.last_error())

    def close(self, comm: int) -> None:
        """Gives a communicator's memory back, after what was queued on it."""
        self._call("ncclCommDestroy", comm)

    def abort(self, comm: int) -> None:
        """As `close`, and ends what may still run."""
        self._call("ncclCommAbort", comm)
