"""Stored state of a simulated cluster, and its observations.

Every call advances the stored `Cluster` to its time within one transaction, so processes never disagree.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from msgspec import json

from provisioning.drivers.simulated_cluster.schedule import (
    Cluster,
    Event,
    Job,
    advance,
    first_used,
    forecast,
    stop,
    submit,
)
from provisioning.drivers.simulated_cluster.script import Hardware, Others
from provisioning.simulation.store import StoredMarks
from provisioning.types import (
    EngineQueue,
    Observation,
    ObservedState,
    PlacedNode,
    WorkspaceRef,
    WorkspaceSpec,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS cluster (id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS workspaces (
    name TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, generation INTEGER NOT NULL, digest TEXT NOT NULL,
    display_name TEXT NOT NULL, template TEXT NOT NULL, exit_code INTEGER NOT NULL,
    deleting INTEGER NOT NULL DEFAULT 0, job TEXT NOT NULL
) WITHOUT ROWID;
"""
FAILURES = {
    Event.APP_EXITED: "The app ended, as scripted. Check its log, then start the workspace again.",
    Event.START_TIMEOUT: "The app did not answer in time, as scripted. Start the workspace again.",
    Event.TIME_LIMIT: (
        "The workspace reached the time limit of its engine. Start the workspace again, "
        "or ask an operator for a longer limit."
    ),
}
LOG_TEXTS = {
    Event.BEGAN: "Started by the engine.",
    Event.READY: "The app answers.",
    Event.REQUEUED: "Preempted and queued again by the engine.",
    Event.APP_EXITED: "Exit code {exit_code}.",
    Event.START_TIMEOUT: "The app did not answer.",
    Event.TIME_LIMIT: "Ended at the time limit.",
    Event.STOPPED: "Ended on request.",
}


@dataclass(frozen=True, slots=True)
class SimulatedWorkspace:
    """A stored workspace and its job."""

    name: str
    workspace_id: str
    generation: int
    digest: str
    display_name: str
    template: str
    exit_code: int
    deleting: int
    job: Job

    @property
    def state(self) -> ObservedState:
        """State after the events of its job so far."""
        job = self.job
        if job.stop_at is not None:
            if job.ended_at is None:
                return ObservedState.STOPPING
            return ObservedState.ABSENT if self.deleting else ObservedState.STOPPED
        if job.ended_at is not None:
            return ObservedState.FAILED
        if job.began_at is None:
            return ObservedState.QUEUED
        return ObservedState.RUNNING if job.ready else ObservedState.STARTING

    def log(self, tail_lines: int) -> str:
        """Return the last lines that the app and the engine have written."""
        queued = f"Simulated {self.template} for “{self.display_name}”: no process runs."
        lines = [
            (at, LOG_TEXTS.get(event, queued).format(exit_code=self.exit_code))
            for at, event in self.job.history
        ]
        tail = lines[-tail_lines:] if tail_lines > 0 else []
        return "".join(
            f"{datetime.fromtimestamp(at, UTC).isoformat(timespec='milliseconds')} {text}\n"
            for at, text in tail
        )


class ClusterRows(StoredMarks):
    """State of a cluster within one transaction, advanced to `now`. `save` stores it."""

    def __init__(
        self, connection: sqlite3.Connection, now: float, hardware: Hardware, others: Others
    ) -> None:
        super().__init__(connection, now)
        self._hardware = hardware
        self._others = others
        self._epoch = self.epoch()
        self._rows = {
            row["name"]: SimulatedWorkspace(**{**row, "job": json.decode(row["job"], type=Job)})
            for row in connection.execute("SELECT * FROM workspaces ORDER BY name")
        }
        self._stored_jobs = {row.job for row in self._rows.values()}
        self._stored_cluster = self._load()
        self._cluster = self._stored_cluster or first_used(self._epoch, hardware, others)
        # Another process may have read its clock later.
        self.now = max(now, self._cluster.at)
        self._advance()
        self._purge()

    def workspace(self, name: str) -> SimulatedWorkspace | None:
        """Return the workspace with this external name, unless it is gone."""
        row = self._rows.get(name)
        return None if row is None or row.state is ObservedState.ABSENT else row

    def workspaces(self) -> tuple[SimulatedWorkspace, ...]:
        """Return all existing workspaces by name."""
        return tuple(row for row in self._rows.values() if row.state is not ObservedState.ABSENT)

    def used_by_others(self) -> int:
        """Return the number of GPUs in use by jobs of others."""
        running = (job for job in self._cluster.jobs if job.runs and not job.name)
        return sum(job.nodes * job.gpus for job in running)

    def submit(self, spec: WorkspaceSpec, job: Job, exit_code: int) -> None:
        """Submit the job of a workspace, in place of its ended one."""
        ref, name = spec.ref, spec.ref.external_name
        row = (name, ref.workspace_id, ref.generation, spec.digest(), spec.name, spec.template, exit_code, 0)
        self.connection.execute(
            "INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')",
            row,
        )
        self._rows[name] = SimulatedWorkspace(*row, job)
        self._cluster = submit(self._cluster, job, self.now)
        self._advance()
        self.record_start(name, spec.home_key)

    def end(self, row: SimulatedWorkspace, delay_s: float, *, deleting: bool) -> None:
        """Request the end of a workspace. A deletion is final."""
        if deleting:
            self._rows[row.name] = replace(row, deleting=1)
            self.connection.execute("UPDATE workspaces SET deleting = 1 WHERE name = ?", (row.name,))
        ending = stop(row.job, self.now, delay_s)
        jobs = tuple(ending if job.name == row.name else job for job in self._cluster.jobs)
        self._cluster = Cluster(self._cluster.at, self._cluster.next_number, jobs)
        self._advance()

    def observe(self, ref: WorkspaceRef) -> Observation:
        """Return the observation of a workspace."""
        row = self.workspace(ref.external_name)
        return Observation(ref, ObservedState.ABSENT) if row is None else self.observation_of(row)

    def observation_of(self, row: SimulatedWorkspace) -> Observation:
        """Return the observation of `row`. Resources are held until it has ended."""
        state, job = row.state, row.job
        failed = state is ObservedState.FAILED
        code = job.history[-1][1] if failed else None
        return Observation(
            WorkspaceRef(row.workspace_id, row.generation),
            state,
            ready=state is ObservedState.RUNNING,
            spec_digest=row.digest,
            exit_code=row.exit_code if code is Event.APP_EXITED else None,
            code=code.value if code else "",
            message=FAILURES[code] if code else "",
            log_tail=row.log(50) if failed else "",
            queue=self._queue_of(job) if state is ObservedState.QUEUED else None,
            placed=tuple(
                PlacedNode(self._hardware.node(node), tuple(map(self._hardware.unit, units)))
                for node, units in (job.placed if job.runs else ())
            ),
            began_at=job.began_at,
            ends_at=job.ends_at,
        )

    def save(self) -> None:
        """Store what has changed."""
        changed = [row for row in self._rows.values() if row.job not in self._stored_jobs]
        self.connection.executemany(
            "UPDATE workspaces SET job = ? WHERE name = ?",
            [(json.encode(row.job).decode(), row.name) for row in changed],
        )
        if self._cluster is not self._stored_cluster:
            others = tuple(job for job in self._cluster.jobs if not job.name)
            stored = Cluster(self._cluster.at, self._cluster.next_number, others)
            self.connection.execute(
                "INSERT OR REPLACE INTO cluster VALUES (1, ?)", (json.encode(stored).decode(),)
            )

    def _load(self) -> Cluster | None:
        text = self._first_value("SELECT state FROM cluster")
        if text is None:
            return None
        stored = json.decode(text, type=Cluster)
        jobs = (*stored.jobs, *(row.job for row in self._rows.values()))
        return Cluster(stored.at, stored.next_number, jobs)

    def _advance(self) -> None:
        self._cluster = advance(
            self._cluster, self._hardware, self._others, epoch=self._epoch, until=self.now
        )
        for job in self._cluster.jobs:
            if job.name and job is not self._rows[job.name].job:
                self._rows[job.name] = replace(self._rows[job.name], job=job)
        self.__dict__.pop("_forecast", None)

    def _purge(self) -> None:
        """Remove deleted workspaces and expired marks."""
        gone = [name for name, row in self._rows.items() if row.state is ObservedState.ABSENT]
        for name in gone:
            self.connection.execute("DELETE FROM workspaces WHERE name = ?", (name,))
            del self._rows[name]
        if gone:
            jobs = tuple(job for job in self._cluster.jobs if not job.name or job.name in self._rows)
            self._cluster = Cluster(self._cluster.at, self._cluster.next_number, jobs)
        self.purge_marks()

    @cached_property
    def _forecast(self) -> dict[str, tuple[int, float | None]]:
        return forecast(self._cluster, self._hardware)

    def _queue_of(self, job: Job) -> EngineQueue:
        position, starts_at = self._forecast[job.name]
        code, message = "priority", "Earlier jobs wait too."
        if position == 1:
            code, message = "resources", "Waiting for free GPUs."
            if not job.gpus:
                message = "Waiting for free CPU and memory."
        return EngineQueue(position, code, message, starts_at, self.now)
