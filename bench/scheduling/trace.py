"""The first half of the Philly trace: jobs with their group, GPUs and duration."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


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
