"""One run of the agent: start, ready, heartbeats, end.

Modules that the app does not wait for are imported where they are used, after the app has started.
"""

# ruff: noqa: PTH103, PTH208, UP031

from __future__ import annotations

import os
import signal
import sys
import time

from .app import free_port, start_app
from .app_listener import AppListener
from .config import EXIT_CONFIG, EXIT_PORT_TAKEN, load_config
from .log import Log
from .portal import REVOKED, Portal
from .state import StateFile
from .waking import WakePipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from types import FrameType
    from typing import Any

    from .app import App
    from .children import Children
    from .config import Config
    from .spare import Spare

PROBE_FIRST_S = 0.015
PROBE_MAX_S = 0.1
BACKOFF_MAX_S = 15.0


class Agent:
    """One run. `run` returns the exit code of the process."""

    app: App
    app_listener: AppListener
    ended: threading.Event

    def __init__(self, config: Config, spare: Spare | None = None, listener: int = -1) -> None:
        self.config = config
        self.spare = spare
        self.listener = listener
        self.log = Log(
            config["log_path"], config["log_max_bytes"], [config["app_token"], config["agent_token"]]
        )
        self.state = StateFile(config["state_path"], config["generation"])
        self.portal = Portal(config)
        self.waking = WakePipe()
        self.stop_signal = False
        self.end_reason = ""  # set once, by the first caller of `end`
        self.ready = False

    def endpoint(self) -> str:
        return str(self.config["endpoint"]).replace("{port}", str(self.app.port))

    # -- threads --------------------------------------------------------------------------

    def pump(self) -> None:
        """Thread: copy the app's output to the log until all writers have closed it."""
        while True:
            try:
                data = os.read(self.app.output, 65536)
            except OSError:
                break
            if not data:
                break
            self.log.feed(data)
        self.log.feed(b"", last=True)

    def announce(self) -> None:
        """Thread: report the app's address, so that the route to it is set up while it starts.

        Tried once: `ready` repeats it.
        """
        self.revoked(self.portal.post("launched", {"endpoint": self.endpoint()})[0])
        # Imported now, because at the first heartbeat these files may be of a newer Berth.
        from . import observing as _observing  # noqa: F401

    def report(self) -> None:
        """Thread: wait for readiness, report it, then send heartbeats until the end."""
        if not self.wait_ready():
            return
        wait_s = 0.2
        while not self.ended.is_set():
            status, _ = self.portal.post("ready", {"endpoint": self.endpoint()})
            if 200 <= status < 300:
                break
            if self.revoked(status):
                return
            self.ended.wait(wait_s)
            wait_s = min(wait_s * 2, BACKOFF_MAX_S)
        from .observing import Observer

        observer = Observer(self.config, self.app, self.app_listener, self.spare)
        interval_s = float(self.config["heartbeat_s"])
        while not self.ended.wait(interval_s):
            if not self.state.written:
                self.state.write("ready", self.app.port)
            status, answer = self.portal.post("heartbeat", {"activity": observer.sample()})
            if self.revoked(status):
                return
            if status == 200 and isinstance(answer, dict) and isinstance(answer.get("next_s"), (int, float)):
                interval_s = min(max(float(answer["next_s"]), 0.05), 3600.0)

    def wait_ready(self) -> bool:
        """Return True once the app answers; end the workspace if it does not in time."""
        from .processes import descendants, process_table
        from .sockets import answers, is_own_listener

        deadline = time.monotonic() + self.config["start_timeout_s"]
        pause_s = PROBE_FIRST_S
        started = time.monotonic()
        while not self.ended.is_set():
            if answers(self.app.port, self.config["ready_path"], 5.0):
                pids = descendants(os.getpid(), process_table())
                if is_own_listener(self.app.port, pids) is False:
                    self.end("port_taken")
                    return False
                self.ready = True
                self.state.write("ready", self.app.port)
                self.waking.wake()  # the main thread then checks for a direct listener
                return True
            if time.monotonic() > deadline:
                self.end("start_timeout")
                return False
            if time.monotonic() - started > 3:
                pause_s = PROBE_MAX_S
            self.ended.wait(pause_s)
        return False

    def revoked(self, status: int) -> bool:
        """End the run if the portal's answer revokes it; return whether it does."""
        if status in REVOKED:
            self.end("revoked")
        return status in REVOKED

    def end(self, reason: str) -> None:
        """Any thread: make the main thread end the workspace for `reason`."""
        if not self.end_reason:
            self.end_reason = reason
        self.waking.wake()

    # -- the main thread --------------------------------------------------------------------

    def on_term(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM and SIGINT; the wake-up descriptor wakes the main loop."""
        self.stop_signal = True

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self.on_term)
        signal.signal(signal.SIGINT, self.on_term)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self.waking.write_end, warn_on_full_buffer=False)
        reason = self.take_secrets() if self.config["secrets"] else ""
        if reason:
            return self.end_before_start(reason, None)
        port = free_port(self.config["ports"])
        if port is None:
            self.state.write("exited", None, reason="port_taken", exit_code=None)
            return EXIT_PORT_TAKEN
        try:
            self.start(port)
        except OSError as error:
            self.log.note("could not start the app: %s" % error)
            return self.end_before_start("exec_failed", 127)
        counted_at = str(self.config.get("traffic_path") or "")
        self.app_listener = AppListener(self.listener, self.app, self.spare, self.log, counted_at)
        self.app_listener.find(self.ready)
        return self.supervise()

    def take_secrets(self) -> str:
        """Fetch the secrets; return why the app cannot start, or ""."""
        from .handing_out import fetch_secrets

        self.state.write("starting", None)
        return fetch_secrets(self.config, self.portal, self.log, self.waking.pause, lambda: self.stop_signal)

    def end_before_start(self, reason: str, exit_code: int | None) -> int:
        """End a run before its app has started."""
        self.state.write("exited", None, reason=reason, exit_code=exit_code)
        self.portal.post("exited", {"exit_code": exit_code, "log_tail": self.log.tail()})
        return 0

    def start(self, port: int) -> None:
        """Prepare and start the app. Raises `OSError`."""
        if self.config["progress_dir"]:
            try:
                os.makedirs(self.config["progress_dir"], 0o700, exist_ok=True)
            except OSError:
                self.config["progress_dir"] = ""  # the app then reports no progress
        if self.config["packages"]:
            from .packages_overlay import prepare

            prepare(self.config)
        if self.config["checkouts"]:
            from .git_settings import prepare as prepare_git

            prepare_git(self.config)
        if self.spare:
            self.app = self.spare.become(self.config, port, self.listener)
        else:
            self.app = start_app(self.config, port)

    def supervise(self) -> int:
        """Run from the start of the app until everything that it started has ended."""
        import threading

        from .children import Children, become_subreaper

        children = Children(self.app, self.app_listener, self.waking)
        self.ended = threading.Event()
        self.state.write("starting", self.app.port)
        cloning = None
        if self.config["checkouts"]:
            from .cloning import CloneRun

            cloning = CloneRun(self.config, self.portal, self.log, self.ended.wait, self.end)
            cloning.start(self.app.port)
        pump = threading.Thread(target=self.pump, daemon=True)
        pump.start()
        become_subreaper()
        threading.Thread(target=self.announce, daemon=True).start()
        threading.Thread(target=self.report, daemon=True).start()
        if cloning and cloning.output >= 0:
            threading.Thread(target=cloning.follow, daemon=True).start()
        self.wait_for_end(children)
        self.ended.set()
        if self.app.exit_code is None:
            children.end_app(self.config["stop_timeout_s"])
        reason = self.end_reason or ("stopped" if self.stop_signal else "app_exit")
        children.end_stray_processes()
        pump.join(1.0)
        if reason == "start_timeout":
            self.log.note("the app did not answer within %s s" % self.config["start_timeout_s"])
        code = self.app.exit_code
        if reason == "port_taken":
            self.state.write("exited", self.app.port, reason=reason, exit_code=None)
            return EXIT_PORT_TAKEN
        self.state.write("exited", self.app.port, reason=reason, exit_code=code)
        if reason in ("app_exit", "start_timeout"):
            self.post_exited(code)
        return 0

    def wait_for_end(self, children: Children) -> None:
        """Wait until the app has ended, a stop was requested, or a thread gave a reason."""
        while True:
            children.reap()
            if self.app.exit_code is not None or self.stop_signal or self.end_reason:
                return
            self.app_listener.find(self.ready)
            spare = self.app_listener.direct is None and self.spare
            self.waking.pause(60.0, *([spare.control.fileno()] if spare else ()))

    def post_exited(self, code: int | None) -> None:
        """Report that the app has ended. Retries are limited: the portal also detects it."""
        body: dict[str, Any] = {"exit_code": code, "log_tail": self.log.tail()}
        wait_s = 0.2
        for _ in range(5):
            status, _answer = self.portal.post("exited", body, 5.0)
            if 0 < status < 500 or self.stop_signal:
                return
            self.waking.pause(wait_s)
            wait_s *= 2


def close_on_exec(keep: int = 3) -> None:
    """Keep descriptors of the launcher, such as the lock that marks the workspace as alive, from the app."""
    try:
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= keep:
                try:
                    os.set_inheritable(int(name), False)
                except OSError:
                    continue
    except OSError:
        pass


def main(arguments: list[str]) -> int:
    os.umask(0o077)
    close_on_exec()
    if len(arguments) > 6 and arguments[1] == "--unclaimed":
        from .spare import Spare

        spare = Spare(int(arguments[2]), int(arguments[3]), arguments[5], arguments[6:])
        claimed = spare.wait()
        return Agent(claimed, spare, int(arguments[4])).run() if claimed else 0
    if len(arguments) not in (2, 3):
        print("usage: agent.py CONFIG [LISTENER]", file=sys.stderr)
        return EXIT_CONFIG
    listener = int(arguments[2]) if len(arguments) == 3 else -1
    try:
        config = load_config(arguments[1])
    except (OSError, ValueError, TypeError) as error:
        print("berth agent: %s" % error, file=sys.stderr)
        return EXIT_CONFIG
    return Agent(config, listener=listener).run()
