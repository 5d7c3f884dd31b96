"""Tables of a simulated pool, besides those of `SimulationStore`. Times are seconds since the epoch."""

from __future__ import annotations

SCHEMA = """
CREATE TABLE IF NOT EXISTS workspaces (
    name TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, generation INTEGER NOT NULL, digest TEXT NOT NULL,
    display_name TEXT NOT NULL, template TEXT NOT NULL, started_at REAL NOT NULL,
    ready_at REAL, failed_at REAL, failure_code TEXT NOT NULL DEFAULT '', exit_code INTEGER,
    ended_at REAL, deleting INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS deleting ON workspaces (ended_at) WHERE deleting = 1;
CREATE TABLE IF NOT EXISTS parts (
    name TEXT NOT NULL, node TEXT NOT NULL, cpu_milli INTEGER NOT NULL, memory_mib INTEGER NOT NULL,
    disk_mib INTEGER NOT NULL, PRIMARY KEY (name, node)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_by_node ON parts (node);
CREATE TABLE IF NOT EXISTS grants (
    name TEXT NOT NULL, node TEXT NOT NULL, device TEXT NOT NULL, milli INTEGER NOT NULL,
    PRIMARY KEY (name, device)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS grants_by_device ON grants (device);
CREATE TABLE IF NOT EXISTS over_grants (at REAL NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS layouts (
    device TEXT PRIMARY KEY, serial INTEGER NOT NULL, pieces TEXT NOT NULL
) WITHOUT ROWID;
"""
