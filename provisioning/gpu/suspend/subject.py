"""A small CUDA process that a trial suspends. `python -m`, started by `trial.py`; not for direct use.

It writes random bytes to a GPU's memory and reports that it is ready. Once its standard input is closed, it
reads them again, and writes and reads others.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from typing import Any

from provisioning.gpu.check.device import CudaError, open_driver, uuid_text
from provisioning.gpu.check.wire import LineWriter, die_with_parent

SIZE = 32 << 20


class SubjectMemory:
    """A block of memory on the first visible GPU."""

    def __init__(self) -> None:
        self._driver = open_driver()
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", 0)
        self.uuid = "GPU-" + uuid_text(self._call("cuDeviceGetUuid", device).bytes)
        self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", device))
        self._at = self._call("cuMemAlloc", SIZE)

    def write(self, data: bytes) -> None:
        self._call("cuMemcpyHtoD", self._at, data, len(data))

    def read(self) -> bytes:
        buffer = ctypes.create_string_buffer(SIZE)
        self._call("cuMemcpyDtoH", ctypes.addressof(buffer), self._at, SIZE)
        return buffer.raw

    def _call(self, function: str, *args: Any) -> Any:
        status, *values = getattr(self._driver, function)(*args)
        if int(status) != 0:
            raise CudaError(function, getattr(status, "name", str(status)))
        return values[0] if values else None


def main(argv: list[str]) -> int:
    die_with_parent()
    out = LineWriter(int(argv[2]))
    nonce = json.loads(argv[1])["nonce"]
    try:
        memory = SubjectMemory()
        data = os.urandom(SIZE)
        memory.write(data)
        digest = hashlib.sha256(data).digest()
        # Only the digest stays, so the comparison depends on GPU memory.
        del data
        out.send("ready", nonce=nonce, uuid=memory.uuid)
        sys.stdin.buffer.read()
        unchanged = hashlib.sha256(memory.read()).digest() == digest
        replacement = os.urandom(SIZE)
        memory.write(replacement)
        out.send("result", nonce=nonce, kept=unchanged, works=memory.read() == replacement)
    except Exception as error:
        # Any error fails the trial; the text is for the operator.
        out.send("failed", nonce=nonce, text=f"{type(error).__name__}: {error}"[:300])
    return 0


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stderr.flush()
    os._exit(code)
