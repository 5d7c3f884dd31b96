"""A small runner of GitLab and GitHub pipelines in bash on this machine.

It supports what the examples use: `variables`, `before_script`, `script` and `after_script` of the only job,
and `env`, `run` and `if: always()` of the only job's steps. `uses` is skipped.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

LIMIT_S = 300
NUMBERS = itertools.count(4711)
"""Numbers of jobs and runs; each is unique."""


@dataclass
class Job:
    """The stages of a job, each with whether it always runs, and the variables."""

    stages: list[tuple[str, bool]]
    variables: dict[str, str]
    cancel_with: int


@dataclass
class Outcome:
    codes: list[int] = field(default_factory=list)
    output: str = ""

    @property
    def passed(self) -> bool:
        return not any(self.codes)


def gitlab(path: Path) -> Job:
    read = yaml.safe_load(path.read_text())
    (job,) = (value for value in read.values() if isinstance(value, dict) and "script" in value)
    main = "\n".join([*job.get("before_script", ()), *job["script"]])
    variables = {"CI_JOB_ID": str(next(NUMBERS)), **read.get("variables", {})}
    # before_script and script share a shell; after_script always runs in another.
    return Job([(main, False), ("\n".join(job["after_script"]), True)], variables, signal.SIGTERM)


def github(path: Path) -> Job:
    read = yaml.safe_load(path.read_text())
    (job,) = read["jobs"].values()
    run = {"github.run_id": str(next(NUMBERS)), "github.run_attempt": "1"}
    variables = {
        name: re.sub(r"\$\{\{ ?([a-z_.]+) ?\}\}", lambda found: run[found[1]], str(value))
        for name, value in job["env"].items()
    }
    steps = [step for step in job["steps"] if "run" in step]
    return Job([(step["run"], step.get("if") == "always()") for step in steps], variables, signal.SIGINT)


def run(
    job: Job,
    folder: Path,
    given: dict[str, str],
    *,
    cancel: Callable[[], Any] | None = None,
    meanwhile: Callable[[Callable[[], str]], Any] | None = None,
) -> Outcome:
    """Run the job in `folder`; `given` overrides its variables, as on both platforms.

    `cancel` waits for the moment of cancellation: processes then get the platform's signal, and only stages
    that always run continue. `meanwhile` runs while the job starts; it is passed a function that returns the
    output so far.
    """
    variables = {**os.environ, **job.variables, **given}
    for name in job.variables:
        # GitLab variables may refer to others.
        variables[name] = re.sub(
            r"\$([A-Z_]+)", lambda found: variables.get(found[1], ""), str(variables[name])
        )
    outcome, stopped = Outcome(), False
    for text, always in job.stages:
        if stopped and not always:
            continue
        with tempfile.NamedTemporaryFile() as output_file:
            output = Path(output_file.name)
            process = subprocess.Popen(
                ["bash", "-eo", "pipefail", "-c", text],
                cwd=folder,
                env=variables,
                stdout=output_file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # A shell's background jobs ignore SIGINT by default.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            try:
                if meanwhile is not None and "berth up" in text:
                    meanwhile(output.read_text)
                if cancel is not None and "berth up" in text:
                    cancel()
                    os.killpg(process.pid, job.cancel_with)
                process.wait(timeout=LIMIT_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                outcome.output += output.read_text()
        outcome.codes.append(process.returncode)
        stopped = stopped or process.returncode != 0
    return outcome
