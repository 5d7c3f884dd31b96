"""The hardware and faults of a fake machine, in the files that the fake libraries read (`machine.h`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RELEASES = {535: "535.183.06", 550: "550.90.07", 570: "570.124.06", 580: "580.65.06"}
LIBRARIES = {"libnvidia-ml.so.1": "nvml.c", "libcuda.so.1": "cuda.c", "libnccl.so.2": "nccl.c"}
ROOT = Path(__file__).parents[3]
BUS = "0000:{:02x}:00.0"


def uuid_of(number: int, kind: str = "GPU") -> str:
    return f"{kind}-{number:08x}-5555-4666-8777-888888888888"


GPU = uuid_of(1)
HALF, SEVENTH = uuid_of(101, "MIG"), uuid_of(102, "MIG")
MIG = (f"gpu H100 {GPU} mig", f"instance {HALF} 3g 4", f"instance {SEVENTH} 1g 0")
KINDS = {
    "T4": (f"gpu T4 {GPU}",),
    "A100": (f"gpu A100 {GPU}",),
    "H100": (f"gpu H100 {GPU}",),
    "H200": (f"gpu H200 {GPU}",),
    "B200": (f"gpu B200 {GPU}",),
    "MIG": MIG,
    "vGPU": (f"gpu A100 {GPU} virtual",),
    "unprivileged": (*MIG, "privileged 0"),
}


@dataclass
class Machine:
    """A fake machine. `folder` is the `LD_LIBRARY_PATH` of its processes and contains its state."""

    folder: Path
    release: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @classmethod
    def at(cls, folder: Path, libraries: Path, release: int, lines: Sequence[str]) -> Machine:
        (folder / "contexts").mkdir(parents=True)
        for library in libraries.iterdir():
            shutil.copy(library, folder / library.name)
        (folder / "machine").write_text("\n".join((f"driver {RELEASES[release]}", *lines, "")))
        machine = cls(folder, release)
        machine._on_pci(sum(line.startswith("gpu ") for line in lines))
        return machine

    @property
    def root(self) -> Path:
        """Its own /sys and /dev."""
        return self.folder / "root"

    @property
    def kernel_log(self) -> Path:
        return self.root / "dev/kmsg"

    def _on_pci(self, count: int) -> None:
        """PCI lists every GPU, whatever the driver reports."""
        (self.root / "dev").mkdir(parents=True)
        self.kernel_log.touch()
        for number in range(count):
            device = self.root / "sys/bus/pci/devices" / BUS.format(0x1B + 16 * number)
            device.mkdir(parents=True)
            for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
                (device / name).write_text(f"{text}\n")
            driver_file = self.root / "proc/driver/nvidia/gpus" / device.name
            driver_file.mkdir(parents=True)
            (driver_file / "information").write_text(
                f"Model: \t\t NVIDIA\nGPU UUID: \t {uuid_of(number + 1)}\nDevice Minor: \t {number}\n"
            )
            (self.root / f"dev/nvidia{number}").touch()

    def fault(self, kind: str, *values: object, gpu: int = 0) -> None:
        """Inject a fault into all libraries from now on."""
        with (self.folder / "faults").open("a") as file:
            file.write(" ".join(map(str, (gpu, kind, *values))) + "\n")

    def mend(self) -> None:
        for path in (self.folder / "faults", *self.folder.glob("lost.*"), *self.folder.glob("ecc.*")):
            path.unlink(missing_ok=True)

    def xid(self, number: int, *, gpu: int = 0, log: bool = True) -> None:
        """Report an XID by NVML and, with `log`, in the kernel log."""
        with (self.folder / "events").open("a") as file:
            file.write(f"{gpu} {number}\n")
        if log:
            slot = BUS.format(0x1B + 16 * gpu).rpartition(".")[0]
            with self.kernel_log.open("a") as file:
                file.write(f"4,1,2,-;NVRM: Xid (PCI:{slot}): {number}, pid=7, name=python, told by a test\n")

    def is_watched(self) -> None:
        """Wait until a process has subscribed to XID events of NVML."""
        until = time.monotonic() + 60
        while not (self.folder / "watched").exists():
            assert time.monotonic() < until, "nobody watches"
            time.sleep(0.01)

    def busy(self, uuid: str, pid: int) -> None:
        """Report a process that computes on the GPU."""
        with (self.folder / "processes").open("a") as file:
            file.write(f"{uuid} {pid}\n")

    def holds(self, uuid: str, memory_mib: Mapping[int, int]) -> None:
        """Set the processes with memory on the device, and its amount; -1: not reported by NVML."""
        temporary = self.folder / "processes.new"
        temporary.write_text("".join(f"{uuid} {pid} {mib}\n" for pid, mib in memory_mib.items()))
        temporary.replace(self.folder / "processes")

    def uses(self, percents: Mapping[tuple[str, int], int]) -> None:
        """Set the processes with utilization, and its value; process 0 is a whole MIG instance."""
        temporary = self.folder / "use.new"
        temporary.write_text("".join(f"{uuid} {pid} {use}\n" for (uuid, pid), use in percents.items()))
        temporary.replace(self.folder / "use")

    def start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a process on this machine; the test ends it."""
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next message of a process; empty if it has ended."""
    assert process.stdout is not None
    message: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
    return message
