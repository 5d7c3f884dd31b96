"""Stored state of simulated workspaces, and its meaning at a given time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from provisioning.simulation.store import StoredMarks
from provisioning.types import Observation, ObservedState, Placement, WorkspaceRef, WorkspaceSpec

FAILURES = {
    "app_exited": "The app ended, as scripted. Check its log, then start the workspace again.",
    "start_timeout": "The app did not answer in time, as scripted. Start the workspace again.",
}


@dataclass(frozen=True, slots=True)
class SimulatedWorkspace:
    """A stored workspace. Times are seconds since the epoch; `None` means never."""

    name: str
    workspace_id: str
    generation: int
    digest: str
    display_name: str
    template: str
    started_at: float
    ready_at: float | None
    failed_at: float | None
    failure_code: str
    exit_code: int | None
    ended_at: float | None
    deleting: int

    def state(self, now: float) -> ObservedState:
        """Return the state at `now`; transitions depend on time only."""
        if self.ended_at is not None:
            if now < self.ended_at:
                return ObservedState.STOPPING
            return ObservedState.ABSENT if self.deleting else ObservedState.STOPPED
        if self.failed_at is not None and now >= self.failed_at:
            return ObservedState.FAILED
        if self.ready_at is not None and now >= self.ready_at:
            return ObservedState.RUNNING
        return ObservedState.STARTING

    def observation(self, now: float, offline_node: str = "") -> Observation:
        """Return the observation at `now`. `offline_node` names an invisible node of this workspace."""
        ref = WorkspaceRef(self.workspace_id, self.generation)
        if offline_node:
            return Observation(
                ref,
                ObservedState.UNKNOWN,
                code="node_offline",
                message=f"Node {offline_node} does not answer. Check the node, or wait for its return.",
            )
        state = self.state(now)
        failed = state is ObservedState.FAILED
        return Observation(
            ref,
            state,
            ready=state is ObservedState.RUNNING,
            spec_digest=self.digest,
            exit_code=self.exit_code if failed else None,
            code=self.failure_code if failed else "",
            message=FAILURES.get(self.failure_code, "") if failed else "",
            log_tail=self.log(now, 50) if failed else "",
        )

    def log(self, now: float, tail_lines: int) -> str:
        """Return the last lines that the app would have written by `now`."""
        lines = [(self.started_at, f"Simulated {self.template} for “{self.display_name}”: no process runs.")]
        ended = min((at for at in (self.failed_at, self.ended_at) if at is not None), default=now)
        if self.ready_at is not None and self.ready_at <= min(now, ended):
            lines.append((self.ready_at, "The app answers."))
        if self.failed_at is not None and self.failed_at <= now and self.failed_at <= ended:
            text = "The app did not answer." if self.exit_code is None else f"Exit code {self.exit_code}."
            lines.append((self.failed_at, text))
        if self.ended_at is not None and self.ended_at <= now:
            lines.append((self.ended_at, "Ended on request."))
        tail = lines[-tail_lines:] if tail_lines > 0 else []
        return "".join(
            f"{datetime.fromtimestamp(at, UTC).isoformat(timespec='milliseconds')} {text}\n"
            for at, text in tail
        )


class PoolRows(StoredMarks):
    """State of a pool within one transaction, as of `now`.

    `offline` maps external names of workspaces with a part on an offline node to that node. Their state is
    unknown, so they never count as gone.
    """

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        super().__init__(connection, now)
        self.offline: dict[str, str] = {}

    def purge(self) -> None:
        """Remove deleted workspaces and expired marks."""
        expired = self.connection.execute(
            "SELECT name FROM workspaces WHERE deleting = 1 AND ended_at <= ?", (self.now,)
        ).fetchall()
        for (name,) in expired:
            if name not in self.offline:
                self._remove(name)
        self.purge_marks()

    def observe_ref(self, ref: WorkspaceRef) -> Observation:
        """Return the observation of a workspace."""
        row = self.row(ref.external_name)
        return Observation(ref, ObservedState.ABSENT) if row is None else self.observation_of(row)

    def observation_of(self, row: SimulatedWorkspace) -> Observation:
        """Return the observation of `row`."""
        return row.observation(self.now, self.offline.get(row.name, ""))

    def row(self, name: str) -> SimulatedWorkspace | None:
        """Return the workspace with this external name, unless it is gone."""
        values = self.connection.execute("SELECT * FROM workspaces WHERE name = ?", (name,)).fetchone()
        row = SimulatedWorkspace(*values) if values else None
        return None if row is None or self._is_absent(row) else row

    def rows(self) -> Iterator[SimulatedWorkspace]:
        """Yield all existing workspaces by name."""
        for values in self.connection.execute("SELECT * FROM workspaces ORDER BY name"):
            row = SimulatedWorkspace(*values)
            if not self._is_absent(row):
                yield row

    def changed_after(self, since: float) -> Iterator[SimulatedWorkspace]:
        """Yield existing workspaces by name whose state may have changed from `since` until now."""
        columns = ("started_at", "ready_at", "failed_at", "ended_at")
        changed = " OR ".join(f"{column} BETWEEN :since AND :now" for column in columns)
        for values in self.connection.execute(
            f"SELECT * FROM workspaces WHERE {changed} ORDER BY name",  # noqa: S608 - names of columns
            {"since": since, "now": self.now},
        ):
            row = SimulatedWorkspace(*values)
            if not self._is_absent(row):
                yield row

    def insert(
        self,
        spec: WorkspaceSpec,
        placement: Placement,
        *,
        ready_at: float | None,
        failed_at: float | None,
        failure_code: str,
        exit_code: int | None,
    ) -> None:
        """Insert a new run in place of the ended one of the same name."""
        name, resources = spec.ref.external_name, spec.resources
        execute, executemany = self.connection.execute, self.connection.executemany
        self._remove(name)
        execute(
            "INSERT INTO workspaces (name, workspace_id, generation, digest, display_name, template, "
            "started_at, ready_at, failed_at, failure_code, exit_code) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                spec.ref.workspace_id,
                spec.ref.generation,
                spec.digest(),
                spec.name,
                spec.template,
                self.now,
                ready_at,
                failed_at,
                failure_code,
                exit_code,
            ),
        )
        executemany(
            "INSERT INTO parts VALUES (?, ?, ?, ?, ?)",
            [
                (name, part.node, resources.cpu_milli, resources.memory_mib, resources.disk_mib)
                for part in placement.nodes
            ],
        )
        executemany(
            "INSERT INTO grants VALUES (?, ?, ?, ?)",
            [
                (name, part.node, grant.uuid, grant.milli)
                for part in placement.nodes
                for grant in part.devices
            ],
        )
        self.record_start(name, spec.home_key)

    def end(self, row: SimulatedWorkspace, delay_s: float, *, deleting: bool) -> None:
        """Request the end of a run. An ending run ends no later than before; a deletion is final."""
        if row.ended_at is not None:
            ended_at = min(row.ended_at, self.now + delay_s)
        else:
            ended_at = self.now if row.state(self.now) is ObservedState.FAILED else self.now + delay_s
        self.connection.execute(
            "UPDATE workspaces SET ended_at = ?, deleting = max(deleting, ?) WHERE name = ?",
            (ended_at, int(deleting), row.name),
        )

    def names_on(self, node: str) -> list[str]:
        """Return external names of workspaces with a part on `node`, including ended ones."""
        return [row[0] for row in self.connection.execute("SELECT name FROM parts WHERE node = ?", (node,))]

    # A run holds its resources until it has ended; a failed one until it is deleted.

    def used_on(self, node: str) -> tuple[int, int, int]:
        """Return (milli-CPU, MiB of memory, MiB of disk) in use on `node`."""
        totals = self.connection.execute(
            "SELECT coalesce(sum(cpu_milli), 0), coalesce(sum(memory_mib), 0), coalesce(sum(disk_mib), 0) "
            "FROM parts JOIN workspaces USING (name) WHERE node = ? AND (ended_at IS NULL OR ended_at > ?)",
            (node, self.now),
        ).fetchone()
        return int(totals[0]), int(totals[1]), int(totals[2])

    def used_of(self, device: str) -> int:
        """Return the allocated thousandths of one device."""
        return int(
            self._first_value(
                "SELECT coalesce(sum(milli), 0) FROM grants JOIN workspaces USING (name) "
                "WHERE device = ? AND (ended_at IS NULL OR ended_at > ?)",
                device,
                self.now,
            )
        )

    def usage(self) -> dict[str, int]:
        """Return the allocated thousandths by device."""
        cursor = self.connection.execute(
            "SELECT device, sum(milli) FROM grants JOIN workspaces USING (name) "
            "WHERE ended_at IS NULL OR ended_at > ? GROUP BY device",
            (self.now,),
        )
        return {str(device): int(milli) for device, milli in cursor}

    def record_over_grant(self, name: str, reason: str) -> None:
        """Record a start that would have allocated something twice."""
        self.connection.execute("INSERT INTO over_grants VALUES (?, ?, ?)", (self.now, name, reason))

    def _is_absent(self, row: SimulatedWorkspace) -> bool:
        return row.state(self.now) is ObservedState.ABSENT and row.name not in self.offline

    def _remove(self, name: str) -> None:
        for table in ("workspaces", "parts", "grants"):
            self.connection.execute(f"DELETE FROM {table} WHERE name = ?", (name,))  # noqa: S608
