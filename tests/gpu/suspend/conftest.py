"""A fake driver with checkpoints (`fake_driver.c`), and processes that use it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_driver.c")
ROOT = SOURCE.parents[3]
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
GPU_A, GPU_B, GPU_C = (f"GPU-00000000-0000-4000-8000-00000000000{letter}" for letter in "abc")
CONFIG = f"gpu {GPU_A} H100 256\ngpu {GPU_B} H100 256\ngpu {GPU_C} A100 256\n"

# A CUDA program with memory that answers each line with the memory's state.
APP = """
import ctypes, sys
import cuda.bindings.driver as d
size, seed = int(sys.argv[1]), int(sys.argv[2])
def call(name, *args):
    status, *rest = getattr(d, name)(*args)
    assert int(status) == 0, (name, status)
    return rest[0] if rest else None
call("cuInit", 0)
gpu = call("cuDeviceGet", 0)
call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", gpu))
at = call("cuMemAlloc", size)
data = bytes((seed + n) % 251 for n in range(size))
call("cuMemcpyHtoD", at, data, size)
print("ready", flush=True)
for line in sys.stdin:
    found = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH", ctypes.addressof(found), at, size)
    print("same" if found.raw == data else "lost", flush=True)
"""


@pytest.fixture(scope="session")
def fake_library() -> Path:
    """The folder of both fake libraries; cached between runs until their source changes."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for the driver cannot be built")
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are not installed")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    home = Path(tempfile.gettempdir(), f"berth-fake-driver-{os.getuid()}-{digest}")
    home.mkdir(mode=0o700, exist_ok=True)
    for name in LIBRARIES:
        if not (home / name).exists():
            half = home / f"half-{os.getpid()}"
            command = [compiler, "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(half)]
            subprocess.run([*command, str(SOURCE), "-ldl"], check=True, timeout=120)
            half.rename(home / name)
    return home


@dataclass
class App:
    """A process with memory on a GPU."""

    popen: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.popen.pid

    def ask(self) -> str:
        """The state of its memory. Blocks while CUDA calls block."""
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.write("?\n")
        self.popen.stdin.flush()
        return self.popen.stdout.readline().strip()

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@dataclass
class FakeDriver:
    """The state of the fake driver: GPUs, faults and calls."""

    folder: Path
    apps: list[App] = field(default_factory=list)

    def configure(self, text: str) -> None:
        (self.folder / "config").write_text(CONFIG + text + "\n")

    def fault(self, call: str, kind: str, arg: int = 0, *, pid: int = 0, times: int = 1) -> None:
        """Inject a fault; `times` -1 is forever."""
        with (self.folder / "faults").open("a") as file:
            file.write(f"{call} {pid} {times} {kind} {arg}\n")

    def go_on(self) -> None:
        """Release calls with the fault `wait`."""
        (self.folder / "go").touch()

    def mend(self) -> None:
        (self.folder / "faults").unlink(missing_ok=True)

    def busy(self, pid: int) -> None:
        (self.folder / "busy" / str(pid)).touch()

    def state(self, pid: int) -> int:
        return int((self.folder / "procs" / str(pid)).read_text().split()[0])

    def states(self) -> list[int]:
        return [self.state(app.pid) for app in self.apps]

    def calls(self) -> list[str]:
        try:
            return [line.split()[0] for line in (self.folder / "calls").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def on_device(self, gpu: int, pid: int) -> list[str]:
        return [path.name for path in (self.folder / "dev" / str(gpu)).glob(f"{pid}.*")]

    def app(self, *, gpu: str = GPU_A, size: int = 1 << 20, seed: int = 7) -> App:
        popen = subprocess.Popen(
            [sys.executable, "-c", APP, str(size), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
        )
        app = App(popen)
        self.apps.append(app)
        assert popen.stdout is not None and popen.stdout.readline() == "ready\n"
        return app


@pytest.fixture
def driver(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """The libcuda and libnvidia-ml of this test's children, with separate state."""
    folder = tmp_path / "driver"
    for name in ("procs", "dev/0", "dev/1", "dev/2", "host", "busy"):
        (folder / name).mkdir(parents=True)
    for name in LIBRARIES:
        # No symlinks: the state is in the library's folder.
        shutil.copy(fake_library / name, folder / name)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    fake_driver = FakeDriver(folder)
    fake_driver.configure("")
    yield fake_driver
    for app in fake_driver.apps:
        app.end()


@pytest.fixture
def apps(driver: FakeDriver) -> Callable[[int], list[App]]:
    def make(count: int) -> list[App]:
        return [driver.app(seed=number) for number in range(count)]

    return make
