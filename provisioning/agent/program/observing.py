"""Current activity of the workspace: the content of a heartbeat."""

from __future__ import annotations

import os
import time

from .edits import last_edit
from .gpus import Gpus
from .jobs import Jobs, Meter, editor_pids, jobs_of, with_own_time
from .jupyter import jupyter_activity
from .kernel_probe import Kernels
from .marimo import marimo_activity, wakeups_of
from .processes import descendants, process_table
from .progress import ProgressCounters
from .servers import unused_servers
from .sockets import sockets_on
from .terminals import terminals_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .app import App
    from .app_listener import AppListener
    from .config import Config
    from .processes import Table
    from .spare import Spare

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Observer:
    """Inspects descendant processes, their sockets, terminals and GPUs, and queries the app."""

    def __init__(self, config: Config, app: App, app_listener: AppListener, spare: Spare | None) -> None:
        self.config = config
        self.app = app
        self.app_listener = app_listener
        self.spare = spare
        self.gpus = Gpus(
            config["devices"], config["shared_devices"], by_process=config["gpu_processes_visible"]
        )
        self.progress = ProgressCounters(config["progress_dir"])
        self.job_meter = Meter()
        self.kernel_meter = Meter()
        self.monitor_meter = Meter()
        self.editor_meter = Meter()
        self.editor_kernels = Kernels()
        self.wakeups: dict[int, int] = {}
        self.last_wakeup: str | None = None  # time of the last heartbeat that observed a change

    def sample(self) -> Config:
        """Return the current activity.

        Unreadable values are null, never zero; values that can never be read are omitted.
        """
        activity: Config = {
            "kernels": None,
            "terminals": None,
            "connections": None,
            "cpu_seconds": None,
            "rss_mib": None,
            "processes": None,
            "jobs": None,
            "jobs_cpu_seconds": None,
            "jobs_io_bytes": None,
            "kernels_cpu_seconds": None,
            "kernels_io_bytes": None,
            "jobs_unused_servers": None,
            "monitors_cpu_seconds": None,
            "editor_cpu_seconds": None,
            "edited_at": None,
            "gpus": self.gpus.sample(),
            "gpus_stale_s": self.gpus.stale_s(),
        }
        viewed_terminals: set[int] = set()
        sockets = sockets_on(self.app.port)
        if sockets is not None:
            activity["connections"] = sockets[1]
        traffic = self.app_listener.traffic_bytes()
        if self.app_listener.direct and self.spare:
            own_connections, traffic = self.spare.connection_counts()
            activity["connections"] = (
                None if sockets is None or own_connections is None else sockets[1] + own_connections
            )
        if self.app_listener.counts:
            # Omitted if connections reach the app without being counted.
            activity["traffic_bytes"] = traffic
        rates = self.progress.rates()
        if rates:
            activity["progress"] = rates
        try:
            table = process_table()
            pids = [pid for pid in descendants(os.getpid(), table) if pid != self.app_listener.relay_pid]
            reaped = os.times()
            ticks = sum(table[pid][2] for pid in pids)
            activity["cpu_seconds"] = round(ticks / CLOCK_TICKS + reaped[2] + reaped[3], 2)
            activity["rss_mib"] = sum(table[pid][3] for pid in pids) * PAGE_BYTES >> 20
            activity["processes"] = len(pids)
            if self.config["activity"] == "code-server":
                activity["kernels"] = self.editor_kernels.sample(pids)
            jobs = jobs_of(
                pids, table, os.getpid(), self.app.pid, editor_kernels=frozenset(self.editor_kernels.probes)
            )
            self.measure(jobs, pids, table)
            activity["jobs"] = jobs.count
            activity["jobs_unused_servers"] = unused_servers(jobs.commands, table)
            activity["jobs_cpu_seconds"] = self.job_meter.cpu_seconds()
            activity["jobs_io_bytes"] = self.job_meter.io_bytes
            activity["kernels_cpu_seconds"] = self.kernel_meter.cpu_seconds()
            activity["kernels_io_bytes"] = self.kernel_meter.io_bytes
            activity["monitors_cpu_seconds"] = self.monitor_meter.cpu_seconds()
            activity["editor_cpu_seconds"] = self.editor_meter.cpu_seconds()
            viewed_terminals = jobs.viewed_terminals
            activity["terminals"] = terminals_of(pids, table, viewed_terminals)
            if self.config["activity"] == "marimo":
                self.notice_wakeups(wakeups_of(pids, table, self.app.pid))
        except (OSError, ValueError, IndexError):
            pass
        if self.config["activity"] == "jupyter":
            own_terminals = activity["terminals"]
            activity.update(jupyter_activity(self.app.port, self.config["app_token"]))
            if viewed_terminals and activity["terminals"] is not None:
                # Jupyter Server cannot distinguish the output of a monitor from that of work.
                activity["terminals"] = own_terminals
        elif self.config["activity"] == "marimo":
            activity.update(marimo_activity(self.app.port, self.config["app_token"]))
            if activity["kernels"] is not None:
                activity["kernels"]["last_activity"] = self.last_wakeup
        activity["edited_at"] = last_edit(
            self.config["activity"], self.config["home"], self.app.port, self.config["app_token"]
        )
        return activity

    def measure(self, jobs: Jobs, pids: list[int], table: Table) -> None:
        """Add what commands, kernels, monitors and the editor have used since the last heartbeat."""
        self.job_meter.measure(jobs.pids, table)
        self.kernel_meter.measure(jobs.kernel_pids, table)
        self.monitor_meter.measure(jobs.monitor_pids, table)
        if self.config["activity"] == "code-server":
            rows = with_own_time(editor_pids(pids, table, self.app.pid), table)
            self.editor_meter.measure(set(rows), rows)

    def notice_wakeups(self, wakeups: dict[int, int]) -> None:
        """Record the time if a kernel has run something since the last heartbeat."""
        if wakeups != self.wakeups:
            self.wakeups = wakeups
            self.last_wakeup = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
