"""The first half of the Philly trace: jobs with their group, GPUs and duration."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    team: str
    gpus: int
    submit_s: int
    duration_s: int


def load(data: Path, limit: int | None = None) -> list[Job]:
    """Jobs in order of submission. Raises FileNotFoundError where `data` lacks the trace."""
    path = data / "philly" / "philly_first_half.csv.gz"
    jobs = []
    with gzip.open(path, "rt", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            submitted = datetime.strptime(row["timestamp"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            jobs.append(
                Job(
                    f"j{number:05d}",
                    row["cluster"],
                    int(row["num_gpus"]),
                    int(submitted.timestamp()),
                    max(1, int(float(row["duration"]))),
                )
            )
    jobs.sort(key=lambda job: (job.submit_s, job.id))
    return jobs[:limit]


def shifted(jobs: Sequence[Job], seed: int, most_s: int = 600) -> list[Job]:
    """The same jobs, each submitted up to `most_s` later by chance: how much a figure owes to luck."""
    chance = Random(seed)
    moved = [replace(job, submit_s=job.submit_s + chance.randint(0, most_s)) for job in jobs]
    return sorted(moved, key=lambda job: (job.submit_s, job.id))
