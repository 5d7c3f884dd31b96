"""Build an environment and kill the process at a stage: `build_and_die.py HOME MOMENT SOURCE`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from provisioning.environment_messages import BuildStage
from provisioning.environments.store import STAMP, Store
from tests.provisioning.environments.package_index import Build, command, machine


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    home, moment, source = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if moment == "stamped" and (path / STAMP).exists():
            die()
        result = rename(path, target)
        if moment == "named" and (target / STAMP).exists():
            die()
        return result

    Path.rename = renamed  # type: ignore[method-assign]

    def report(stage: BuildStage, done: int, total: int) -> None:
        if stage == moment:
            reported.append(stage)

    reported: list[BuildStage] = []

    def cancelled() -> bool:
        # Called while a step of this stage runs.
        if reported:
            die()
        return False

    build = Build(
        command(source),
        Store(home / "environments"),
        machine(home),
        report=report,
        write=lambda line: None,
        cancelled=cancelled,
    )
    build.run()


if __name__ == "__main__":
    main()
