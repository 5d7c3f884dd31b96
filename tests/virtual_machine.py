"""Run a command under another kernel, in a virtual machine that sees this machine's files.

For features that the kernel of a test machine may lack: project quotas, or only control groups of version 2.
The machine runs in QEMU, with a kernel from a Debian package that need not be installed. Its files are this
machine's, read-only, below an in-memory file system for writes. QEMU emulates every instruction, so it also
works on virtual machines; it boots in half a minute.
"""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

KERNEL = "BERTH_TEST_KERNEL"
HOW = (
    f"set {KERNEL} to a folder with boot/vmlinuz-* and lib/modules: apt-get download linux-image-…-amd64 of "
    "Debian, then dpkg -x that file FOLDER"
)
MODULES = (
    # Modules that others request by name come first.
    "crc32c_generic", "virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4", "xfs", "quota_v2",
    "tun", "nf_tables",
)  # fmt: skip
MEMORY_MIB = 2048
ENDED = "the command ended with "
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
mount -t tmpfs -o size=75% own /own && mkdir /own/upper /own/work
mount -t overlay -o lowerdir=/host,upperdir=/own/upper,workdir=/own/work root /new
for each in proc sys dev; do mount --move /$each /new/$each; done
cp /command /new/.command
exec switch_root /new /bin/sh /.command
"""
FIRST = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/shm /dev/pts && mount -t tmpfs shm /dev/shm && mount -t devpts pts /dev/pts
mount -t tmpfs run /run && mount -t cgroup2 groups /sys/fs/cgroup
chmod 666 /dev/net/tun; ip link set lo up; hostname virtual
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a command there; `returncode` is None if the machine ended without reporting it."""

    returncode: int | None
    output: str


def run(folder: Path, command: Sequence[str], *, disks: Mapping[str, int], limit_s: float) -> Ran:
    """Run a command as root in this folder. `disks` are empty disks by name (vda, vdb) with their MiB.

    Skips if QEMU or the kernel is missing.
    """
    qemu, busybox, kernel, modules = _parts()
    script = folder / "command"
    script.write_text(
        f"{FIRST}\ncd {shlex.quote(str(Path.cwd()))}\n{shlex.join(command)} > /dev/ttyS1 2>&1\n"
        f'echo "{ENDED}$?" > /dev/ttyS1\nsync\necho o > /proc/sysrq-trigger\nwhile :; do :; done\n'
    )
    initial, output, console = folder / "initial", folder / "output", folder / "console"
    initial.write_bytes(_initial(busybox, modules, script))
    argv = [
        qemu, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB), "-nodefaults",
        "-no-reboot", "-display", "none", "-kernel", str(kernel), "-initrd", str(initial),
        "-append", "console=ttyS0 panic=-1 quiet log_buf_len=1M",
        "-serial", f"file:{console}", "-serial", f"file:{output}",
        "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ]  # fmt: skip
    for name, size_mib in disks.items():
        image = folder / name
        with image.open("wb") as file:
            file.truncate(size_mib << 20)
        argv += ["-drive", f"file={image},format=raw,if=virtio,cache=unsafe"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(argv, timeout=limit_s, check=False)
    text = output.read_text(errors="replace").replace("\r\n", "\n") if output.exists() else ""
    match = re.search(rf"^{ENDED}(\d+)$", text, flags=re.MULTILINE)
    if match is None:
        text += "\n" + (console.read_text(errors="replace") if console.exists() else "no console")
    return Ran(int(match[1]) if match else None, text)


def _parts() -> tuple[str, Path, Path, Path]:
    """Return QEMU, busybox, the kernel and the folder of its modules."""
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None:
        pytest.skip("there is no qemu: apt-get install qemu-system-x86")
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("there is no busybox: apt-get install busybox-static")
    root = Path(os.environ.get(KERNEL) or "/")
    for kernel in sorted((root / "boot").glob("vmlinuz-*"), reverse=True):
        modules = root / "lib" / "modules" / kernel.name.removeprefix("vmlinuz-")
        if modules.is_dir() and os.access(kernel, os.R_OK):
            return qemu, Path(busybox), kernel, modules
    pytest.skip(f"there is no kernel in {root}: {HOW}")


def _initial(busybox: Path, modules: Path, script: Path) -> bytes:
    """Return the initial files of the machine (cpio, “newc”), which mount its other files."""
    loaded = dict(_modules(modules))
    files: list[tuple[str, int, bytes]] = [
        *((name, 0o40755, b"") for name in ("bin", "proc", "sys", "dev", "host", "own", "new", "modules")),
        ("bin/busybox", 0o100755, busybox.read_bytes()),
        ("init", 0o100755, INIT.encode()),
        ("command", 0o100755, script.read_bytes()),
        ("modules/order", 0o100644, "\n".join(loaded).encode()),
        *((f"modules/{name}", 0o100644, content) for name, content in loaded.items()),
        ("TRAILER!!!", 0, b""),
    ]
    parts = []
    for number, (name, mode, content) in enumerate(files, start=1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name.encode() + b"\0"
        parts += [_padded(head), _padded(content)]
    return gzip.compress(b"".join(parts), 1)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)


def _modules(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Return the files of the needed modules, each after its dependencies. Built-in modules are left out."""
    paths = {path.name.partition(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    done: set[str] = set()

    def load(name: str) -> Iterator[tuple[str, bytes]]:
        if name in done or name not in paths:
            return
        done.add(name)
        path = paths[name]
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        needed = re.search(rb"\0depends=([^\0]*)\0", content)
        for dependency in needed[1].decode().split(",") if needed else ():
            yield from load(dependency.replace("-", "_"))
        yield f"{name}.ko", content

    for name in MODULES:
        yield from load(name.replace("-", "_"))
