"""Run the phases of the tests: `python -m tests.suite quick|full [PYTEST_ARGUMENT ...]`.

Every 30 s a line per running phase shows how many of its tests are done and have failed; a failed test is
named at once. The output of a phase is in test-results/PHASE.log, and is shown if the phase failed. The last
lines are the sum over all phases (`tests.suite.tally`), whose exit code the program returns.

`full` continues an interrupted run: a phase that has passed at this commit, in a clean working tree, is not
repeated. A phase that was skipped completely runs again, since its requirements may be met now.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.suite import bytecode, phases, tally
from tests.suite.phases import ROOT, Phase

RESULTS = ROOT / "test-results"
EVERY_S = 30.0
POLL_INTERVAL_S = 1.0
ENDING_S = 60.0
REPORTS = (".xml", ".code", ".progress")


class Run:
    """One run of all lanes."""

    def __init__(self, folder: Path, more: tuple[str, ...], *, at: str = "") -> None:
        self.folder, self.more = folder, more
        self.at = at
        """The commit for which passed phases are recorded; empty: they are not recorded."""
        self.began = time.monotonic()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.named: set[str] = set()
        self.cancelled = threading.Event()
        self._printing = threading.Lock()

    def say(self, text: str) -> None:
        with self._printing:
            minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
            print(f"[{minutes:2d}:{seconds:02d}] {text}", flush=True)

    def lane(self, lane: tuple[Phase, ...]) -> None:
        for phase in lane:
            if self.cancelled.is_set():
                return
            self.phase(phase)

    def phase(self, phase: Phase) -> None:
        note = self.folder / f"{phase.name}.passed"
        note.unlink(missing_ok=True)
        for ending in REPORTS:
            (self.folder / f"{phase.name}{ending}").unlink(missing_ok=True)
        self.say(f"{phase.name}: started")
        log = self.folder / f"{phase.name}.log"
        # Write bytecode even if disabled: the tests start Python hundreds of times.
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        with log.open("wb") as output:
            process = subprocess.Popen(
                phase.command(self.folder, self.more), cwd=ROOT, env=environ, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.running[phase.name] = process
        try:
            code = process.wait(timeout=phase.limit_s)
        except subprocess.TimeoutExpired:
            self.say(f"{phase.name}: not done after {phase.limit_s} s")
            end(process)
            code = 124
        self._name_failures(phase.name)
        del self.running[phase.name]
        (self.folder / f"{phase.name}.code").write_text(str(code))
        if code not in (0, 5):
            self.say(f"{phase.name}: failed; its output:")
            with self._printing:
                print(without_dots(log.read_text(errors="replace")), flush=True)
        if self.at and tally.passed(self.folder, phase.name) and commit() == self.at:
            note.write_text(self.at)
        self.say(f"{phase.name}: ended, exit code {code}")

    def watch(self, lanes: list[threading.Thread]) -> None:
        """Report progress until every lane has ended."""
        due = time.monotonic() + EVERY_S
        while any(lane.is_alive() for lane in lanes):
            time.sleep(POLL_INTERVAL_S)
            for name in list(self.running):
                self._name_failures(name)
            if time.monotonic() >= due:
                due += EVERY_S
                self.say("; ".join(map(self._state, list(self.running))) or "between two phases")

    def cancel(self) -> None:
        self.cancelled.set()
        for process in list(self.running.values()):
            end(process)

    def _progress(self, name: str) -> tuple[int, int, list[str]]:
        try:
            content = json.loads((self.folder / f"{name}.progress").read_text())
        except (OSError, ValueError):
            return 0, 0, []
        return content["done"], content["total"], content["failed"]

    def _state(self, name: str) -> str:
        done, total, failed = self._progress(name)
        return f"{name} {done} of {total}, {len(failed)} failed" if total else f"{name} collecting"

    def _name_failures(self, name: str) -> None:
        for test in self._progress(name)[2]:
            if test not in self.named:
                self.named.add(test)
                self.say(f"FAILED {test}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a phase, so that it reports; kill it if it does not end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def without_dots(text: str) -> str:
    """Return pytest output without progress lines."""
    return "\n".join(line for line in text.splitlines() if set(line.split("[")[0].strip()) - set(".sxXFEu,-"))


def commit() -> str:
    """Return the commit of a clean working tree; empty if there are uncommitted changes."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return "" if git("status", "--porcelain") else git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return ""


def passed_at(folder: Path, phase: Phase) -> str:
    """Return the commit at which the phase last passed; empty if it has not, or its report is missing."""
    if not tally.passed(folder, phase.name):
        return ""
    try:
        return (folder / f"{phase.name}.passed").read_text()
    except OSError:
        return ""


def main(which: str, *more: str) -> int:
    RESULTS.mkdir(exist_ok=True)
    lanes = phases.quick() if which == "quick" else phases.full()
    every = [phase for lane in lanes for phase in lane]
    at_commit = commit() if which == "full" and not more else ""
    passed = {phase.name for phase in every if at_commit and passed_at(RESULTS, phase) == at_commit}
    run = Run(RESULTS, more, at=at_commit)
    for name in sorted(passed):
        run.say(f"{name}: has passed at this commit, not repeated")
    todo = [tuple(phase for phase in lane if phase.name not in passed) for lane in lanes]
    files = bytecode.stale()
    if any(todo) and len(files) > bytecode.FEW:
        run.say(f"compiling {len(files)} test files")
        bytecode.compile_all(files)
    threads = [threading.Thread(target=run.lane, args=(lane,)) for lane in todo]
    for thread in threads:
        thread.start()
    try:
        run.watch(threads)
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            run.cancel()
    for thread in threads:
        thread.join()
    return tally.report(RESULTS, every, seconds=time.monotonic() - run.began)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("quick", "full"):
        sys.exit("usage: python -m tests.suite quick|full [PYTEST_ARGUMENT ...]")
    sys.exit(main(*sys.argv[1:]))
