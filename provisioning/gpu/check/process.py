"""A child process in its own session that may hang or send false or endless output; waits are limited."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioning.gpu.check.wire import LineReader, ProtocolViolation

TERM_S = 2.0
KILL_S = 10.0
STDERR_KEEP = 4096
_ROOT = Path(__file__).resolve().parents[3]
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CUDA_PATH",
    "CUDA_HOME",
)

# Processes that could not be ended, kept for reaping once the kernel releases them.
_abandoned: list[subprocess.Popen[bytes]] = []


def reap_abandoned() -> int:
    """Reap abandoned processes that have ended; return how many remain."""
    _abandoned[:] = [process for process in _abandoned if process.poll() is None]
    return len(_abandoned)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return a minimal environment, without secrets of the worker or CUDA settings of the host."""
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        **env,
        "PYTHONPATH": str(_ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "BERTH_CHECK_PARENT": str(os.getpid()),
        **extra,
    }


class Process:
    """Start a process. `argv` is extended by the configuration as JSON and the descriptor for messages.

    Its standard input is a pipe; `finish()` closes it to request a clean exit.
    """

    def __init__(
        self, name: str, argv: Sequence[str], config: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.stderr = b""
        self.closed = False
        self._lines = LineReader()
        reading, writing = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [*argv, json.dumps(dict(config)), str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(writing,),
                env=environment(env),
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._fd = reading
        assert self._popen.stderr is not None
        self._err = self._popen.stderr.fileno()
        os.set_blocking(reading, False)
        os.set_blocking(self._err, False)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    @property
    def cut_off(self) -> bool:
        return self._lines.cut_off

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._fd, selectors.EVENT_READ, (self, "out"))
        selector.register(self._err, selectors.EVENT_READ, (self, "err"))

    def unregister(self, selector: selectors.BaseSelector) -> None:
        for fd in (self._fd, self._err):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(fd)

    def read(self, stream: str, selector: selectors.BaseSelector) -> list[dict[str, Any]]:
        """Return complete messages received since the last call. Raises `ProtocolViolation`."""
        fd = self._fd if stream == "out" else self._err
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            selector.unregister(fd)
            if stream == "out":
                self.closed = True
            return []
        if stream == "err":
            self.stderr = (self.stderr + data)[-STDERR_KEEP:]
            return []
        try:
            return self._lines.feed(data)
        except ProtocolViolation:
            selector.unregister(fd)
            self.closed = True
            raise

    def finish(self) -> None:
        """Request a clean exit by closing its standard input."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Return whether it ends within this time. Polls, so it never blocks in the kernel."""
        end = time.monotonic() + seconds
        while self._popen.poll() is None:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True

    def state(self) -> str:
        """Return the kernel's state letter (`D`: waits for a device); empty if it is gone."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return text.rpartition(")")[2].split()[0]

    def end(self, term_s: float = TERM_S, kill_s: float = KILL_S) -> bool:
        """Send SIGTERM to its process group, then SIGKILL. Returns False if it survives and is abandoned."""
        self.finish()
        ended = self._popen.poll() is not None
        for number, seconds in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
            # Signal the group even if its leader is gone: a helper may still hold the device.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            ended = ended or self.wait(seconds)
            if ended and number == signal.SIGTERM:
                continue
        if not ended:
            _abandoned.append(self._popen)
        self.release()
        return ended

    def release(self) -> None:
        """Close the pipes of a process that has ended or was abandoned."""
        self.finish()
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1
        if self._popen.stderr is not None:
            self._popen.stderr.close()


def python(module: str) -> tuple[str, ...]:
    """Return the argument vector of one of the check's processes."""
    return (sys.executable, "-m", module)
