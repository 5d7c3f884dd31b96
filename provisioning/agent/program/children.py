"""Waits for all child processes, including orphans, and ends them."""

# ruff: noqa: SIM105

from __future__ import annotations

import os
import signal
import time

from .processes import descendants, process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .app import App
    from .app_listener import AppListener
    from .waking import WakePipe


class Children:
    """The app, its relay, and orphans adopted by this process."""

    def __init__(self, app: App, app_listener: AppListener, waking: WakePipe) -> None:
        self.app = app
        self.app_listener = app_listener
        self.waking = waking

    def reap(self) -> None:
        """Reap every ended child, including orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.app.pid:
                self.app.exit_code = (
                    os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                )
            elif pid == self.app_listener.relay_pid:
                self.app_listener.relay_pid = 0

    def end_app(self, timeout_s: float) -> None:
        """Ask the app to end, wait up to its timeout, then kill it."""
        signal_group(self.app.pid, signal.SIGTERM)
        if not self.wait_until(lambda: self.app.exit_code is not None, timeout_s):
            signal_group(self.app.pid, signal.SIGKILL)
            self.wait_until(lambda: self.app.exit_code is not None, 5.0)

    def end_stray_processes(self) -> None:
        """End processes that the app left in other sessions (kernels, terminals)."""

        def rest() -> list[int]:
            return descendants(os.getpid(), process_table())

        for number, patience_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0), (signal.SIGKILL, 2.0)):
            pids = rest()
            if not pids:
                break
            for pid in pids:
                signal_one(pid, number)
            self.wait_until(lambda: not rest(), patience_s)
        self.reap()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition` is true; return False after the timeout. SIGCHLD triggers a check."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.reap()
            if condition():
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.waking.pause(min(left_s, 0.5))


def signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except OSError:
        signal_one(pid, number)


def signal_one(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def become_subreaper() -> None:
    """Adopt orphans of the app, so that none outlives the workspace or remains a zombie."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    except (OSError, AttributeError, ImportError):
        pass
