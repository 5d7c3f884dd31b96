"""The check's child process with small sizes; everything else is the product.

It uses packaged kernels; a file `nvrtc` beside the libraries selects the compilers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from provisioning.gpu.check import child, compiler, nccl
from provisioning.gpu.check.device import Device
from provisioning.gpu.check.probes.base import Sizes


def sizes_for(device: Device, level: str) -> Sizes:
    return Sizes(
        copy_bytes=1 << 20, pcie_bytes=1 << 20, exact_side=128, exact_depth=64, rate_side=128,
        rate_side_wide=128, copies=2, launches=1, blocks=3,
    )  # fmt: skip


if __name__ == "__main__":
    child.sizes_for = sizes_for
    nccl.of_wheel = lambda: None  # the fake machine's library, beside its driver
    if Path(os.environ["LD_LIBRARY_PATH"], "nvrtc").exists():
        compiler.packaged = lambda unit, capability: None
    else:
        compiler.compilers = tuple
    code = child.main(sys.argv)
    sys.stderr.flush()
    os._exit(code)
