"""One rank of a sum over several processes: `RANK OF [ID]`. Prints its new unique id, and its result."""

from __future__ import annotations

import ctypes
import json
import sys

from provisioning.gpu.check import nccl
from provisioning.gpu.check.device import Device, open_driver

WORDS = 5000


def main(rank: int, of: int, unique_id: str = "") -> None:
    nccl.of_wheel = lambda: None  # the fake machine's library, beside its driver
    device, library = Device(open_driver()), nccl.Nccl(nccl.find())
    if not unique_id:
        unique_id = library.unique_id().hex()
        print(json.dumps({"id": unique_id}), flush=True)
    comm = library.rank(of, rank, bytes.fromhex(unique_id))
    with device.buffers(WORDS * 8, WORDS * 8) as (own, total):
        device.write(
            own, (ctypes.c_uint64 * WORDS)(*((rank + 1) * 1000003**2 + word for word in range(WORDS)))
        )
        library.all_reduce(comm, own, total, WORDS, "uint64", int(device.stream))
        got = (ctypes.c_uint64 * WORDS)()
        device.read(got, total)
    library.check(comm)
    library.close(comm)
    print(json.dumps({"uuid": device.uuid, "first": got[0], "last": got[WORDS - 1]}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
