"""`nvidia-smi` of a fake machine: lists its GPUs (`-L`), and resets one unless a process has it open.

The file `tool` selects another behavior of resets: `fails`, `linked`, `hangs` (until the file is removed).
Each reset is a line in `resets`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pynvml

FOLDER = Path(__file__).parent
OFF = FOLDER / "persistence-off"
TOOL = FOLDER / "tool"


def mood() -> str:
    return TOOL.read_text() if TOOL.exists() else ""


def is_open(device: Path) -> bool:
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == device:
                return True
        except OSError:
            continue
    return False


def list_gpus() -> int:
    """List the GPUs by NVML."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(f"NVIDIA-SMI has failed: {error}")
        return 9
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
        print(f"GPU {index}: {name} (UUID: {uuid})")
    pynvml.nvmlShutdown()
    return 0


def main(arguments: list[str]) -> int:
    if arguments == ["-L"]:
        return list_gpus()
    bus = arguments[arguments.index("-i") + 1]
    if arguments[0] == "-pm":
        OFF.unlink(missing_ok=True)
        if arguments[1] == "0":
            OFF.touch()
        return 0
    (FOLDER / "tool-pid").write_text(str(os.getpid()))
    while mood() == "hangs":
        time.sleep(0.02)
    minor = (int(bus.split(":")[1], 16) - 0x1B) // 16
    if mood() == "linked":
        print(f"GPU {bus} has NVLink connections to GPU 00000000:2B:00.0, which must be reset with it.")
        return 255
    if mood() == "fails":
        print(f"GPU {bus} could not be reset: Unknown Error")
        return 255
    if not OFF.exists() or is_open(FOLDER / f"root/dev/nvidia{minor}"):
        print(f"The following GPUs could not be reset:\n  GPU {bus}: In use by another client")
        return 255
    with (FOLDER / "resets").open("a") as file:
        file.write(f"{bus}\n")
    print(f"GPU {bus} was successfully reset.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
