"""Read the Philly trace or half of it: jobs with their group, GPUs and duration."""

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


def load(path: Path, limit: int | None = None, part: str = "all") -> list[Job]:
    """Return jobs in order of submission: all, or the `first` or `second` half.

    The file has the columns timestamp, duration (seconds), num_gpus and cluster (the group), and may be
    compressed with gzip. Raises `FileNotFoundError` if it is missing.
    """
    jobs = []
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
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
    if part != "all":
        half = len(jobs) // 2
        jobs = jobs[:half] if part == "first" else jobs[half:]
    return jobs[:limit]


def synthetic(seed: int, count: int, gpus: int, load: float = 0.95) -> list[Job]:
    """Return synthetic jobs that request `load` of the GPUs on average.

    Durations are log-normal (median 20 minutes, with a long tail). Sizes are powers of two up to an eighth of
    the GPUs. Eight groups of unequal size submit in bursts, hours apart.
    """
    chance = Random(seed)
    drawn = []
    for _ in range(count):
        size = 1 << min(chance.choices(range(7), (50, 10, 10, 15, 8, 5, 2))[0], (gpus // 8).bit_length() - 1)
        duration_s = min(7 * 86400, 30 + int(chance.lognormvariate(7.1, 1.9)))
        drawn.append((size, duration_s, chance.choices(range(8), (1, 2, 3, 5, 8, 13, 21, 34))[0]))
    span_s = int(sum(size * duration_s for size, duration_s, _ in drawn) / (load * gpus))
    bursts = [[chance.randrange(span_s) for _ in range(40)] for _ in range(8)]
    jobs = []
    for number, (size, duration_s, group) in enumerate(drawn):
        at_s = chance.choice(bursts[group]) + int(chance.expovariate(1 / 14_400))
        jobs.append(Job(f"j{number:05d}", f"g{group}", size, at_s, duration_s))
    return sorted(jobs, key=lambda job: (job.submit_s, job.id))


def shifted(jobs: Sequence[Job], seed: int, most_s: int = 600) -> list[Job]:
    """Return the jobs, each submitted up to `most_s` later at random, to measure the effect of chance."""
    chance = Random(seed)
    moved = [replace(job, submit_s=job.submit_s + chance.randint(0, most_s)) for job in jobs]
    return sorted(moved, key=lambda job: (job.submit_s, job.id))


def thinned(jobs: Sequence[Job], seed: int, gpus: int, of: int = 4) -> list[Job]:
    """Return a random subset of about one job in `of`, without jobs that request over a third of `gpus`.

    With the same part of the GPUs, such sites are as loaded as the whole one and share hardly any job.
    So they tell an effect from chance.
    """
    chance = Random(seed)
    return [job for job in jobs if chance.random() * of < 1 and job.gpus <= gpus // 3]
