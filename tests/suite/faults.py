"""Compare which seeded faults of the product two test suites catch: `python -m tests.suite.faults -h`.

`plan` chooses faults (`fault_edits`), each an edit of one place, among the lines that tests of the old suite
run. `run` makes one fault after the other in a checkout and runs the tests that reach it; it edits files, so
give it scratch checkouts. `infer` adds for the old suite what the new one caught by a test that both have.
`table` compares.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.suite.fault_edits import Edit, changes_the_program, edits

PRODUCT = ("portal", "provisioning")
LEFT_OUT = {
    "settings", "migrations",
    "settings.py", "urls.py", "asgi.py", "wsgi.py", "__main__.py", "apps.py", "admin.py",
}  # fmt: skip
"""Names of files, and of folders."""
BACKUPS = ".fault-backup"
MARKS = "not engine and not browser"
Fault = dict[str, Any]


class Contexts:
    """The tests that run each product line, recorded by `pytest --cov-context=test`."""

    def __init__(self, path: str, root: Path) -> None:
        from coverage import CoverageData

        self._data = CoverageData(basename=path)
        self._data.read()
        self.names: dict[str, str] = {}
        for name in self._data.measured_files():
            parts = Path(name).parts
            ends = ["/".join(parts[place:]) for place, part in enumerate(parts) if part in PRODUCT]
            self.names |= {end: name for end in ends if (root / end).is_file()}

    def tests_by_line(self, file: str) -> dict[int, set[str]]:
        recorded = self._data.contexts_by_lineno(self.names[file]) if file in self.names else {}
        return {
            line: {context.rpartition("|")[0] for context in contexts if "::" in context}
            for line, contexts in recorded.items()
        }

    def tests(self, file: str, line: int, end_line: int) -> set[str]:
        by_line = self.tests_by_line(file)
        return set().union(*(by_line.get(number, ()) for number in range(line, end_line + 1)))


def room_of(file: str) -> str:
    """Return the folder below portal/ or provisioning/; a file there is its own room."""
    return "/".join(file.removesuffix(".py").split("/")[:2])


def shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Divide `count` faults among the rooms by the square root of their candidates, at least one each."""
    counts = dict.fromkeys(sizes, 0)
    for _ in range(min(count, sum(sizes.values()))):
        open_rooms = [room for room in sorted(sizes) if counts[room] < sizes[room]]
        due = max(
            open_rooms, key=lambda room: (not counts[room], math.sqrt(sizes[room]) / (2 * counts[room] + 1))
        )
        counts[due] += 1
    return counts


def chosen(
    pool: list[tuple[str, Edit]], count: int, sources: dict[str, bytes], dice: random.Random
) -> Iterator[Any]:
    """Choose from one room: a kind, then a candidate, in another function if possible."""
    used: set[tuple[str, str]] = set()
    while pool and count:
        unused = [(file, edit) for file, edit in pool if (file, edit.function) not in used] or pool
        kind = dice.choice(sorted({edit.kind for _, edit in unused}))
        file, edit = dice.choice([candidate for candidate in unused if candidate[1].kind == kind])
        pool.remove((file, edit))
        if changes_the_program(sources[file], edit):
            used.add((file, edit.function))
            count -= 1
            yield file, edit


def plan(options: argparse.Namespace) -> None:
    root, dice = Path(options.root), random.Random(options.seed)
    contexts = Contexts(options.contexts, root)
    sources: dict[str, bytes] = {}
    pools: dict[str, list[tuple[str, Edit]]] = defaultdict(list)
    lines_of_test: Counter[str] = Counter()
    for path in sorted(path for top in PRODUCT for path in (root / top).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        by_line = contexts.tests_by_line(file)
        for tests in by_line.values():
            lines_of_test.update(tests)
        if LEFT_OUT.intersection(path.parts):
            continue
        sources[file] = path.read_bytes()
        for edit in edits(sources[file]):
            if any(by_line.get(line) for line in range(edit.line, edit.end_line + 1)):
                pools[room_of(file)].append((file, edit))
    counts = shares({room: len(pool) for room, pool in pools.items()}, options.count)
    faults = [
        fault_record(file, edit, sources[file])
        for room in sorted(pools)
        for file, edit in chosen(pools[room], counts[room], sources, dice)
    ]
    dice.shuffle(faults)
    for place, fault in enumerate(faults, 1):
        name, tests = (
            fault["room"].split("/")[1],
            contexts.tests(fault["file"], fault["line"], fault["end_line"]),
        )
        fault["id"] = f"f{place:03d}"
        fault["tests"] = sorted(
            tests,
            key=lambda test: (name not in test.split("::")[0].split("/")[:-1], lines_of_test[test], test),
        )
    Path(options.out).write_text(json.dumps({"seed": options.seed, "faults": faults}, indent=1))
    print(f"{len(faults)} faults of {sum(map(len, pools.values()))} candidates left, in {len(pools)} rooms")


def fault_record(file: str, edit: Edit, source: bytes) -> Fault:
    lines = [b"", *source.splitlines(keepends=True), b""]
    parts = lines[edit.line - 1], b"".join(lines[edit.line : edit.end_line + 1]), lines[edit.end_line + 1]
    above, own, below = (part.decode() for part in parts)
    column = edit.start - len(b"".join(lines[: edit.line]))
    around = {"column": column, "above": above, "source": own, "below": below}
    return {"id": "", "room": room_of(file), "file": file, **dataclasses.asdict(edit), **around}


def place_of(fault: Fault, source: bytes) -> int | None:
    """Return where the edit starts in a text that may differ from the planned one; None if unclear."""
    above, own, below, before = (fault[name].encode() for name in ("above", "source", "below", "before"))
    planned = fault["start"] - fault["column"]
    starts = [planned] if source[planned : planned + len(own)] == own else []
    for block, skipped in ((above + own + below, len(above)), (own, 0)):
        starts_found = [
            match.start() for match in re.finditer(rb"^" + re.escape(block), source, re.MULTILINE)
        ]
        starts += [starts_found[0] + skipped] if len(starts_found) == 1 else []
    start = starts[0] + fault["column"] if starts else 0
    return start if starts and source[start : start + len(before)] == before else None


def write(path: Path, content: bytes, mtime_ns: int) -> None:
    beside = path.with_name(path.name + ".fault-new")
    beside.write_bytes(content)
    if path.exists():
        shutil.copymode(path, beside)
    os.utime(beside, ns=(mtime_ns, mtime_ns))
    beside.replace(path)


def restore(root: Path) -> None:
    """Restore every file of which a copy exists."""
    for backup in list((root / BACKUPS).rglob("*.py")):
        write(root / backup.relative_to(root / BACKUPS), backup.read_bytes(), backup.stat().st_mtime_ns)
        backup.unlink()
    shutil.rmtree(root / BACKUPS, ignore_errors=True)


@contextlib.contextmanager
def seeded(root: Path, file: str, content: bytes) -> Iterator[None]:
    """Replace the content of a file, with another mtime second, by which Python detects old bytecode."""
    path, backup = root / file, root / BACKUPS / file
    known_ns = path.stat().st_mtime_ns
    backup.parent.mkdir(parents=True, exist_ok=True)
    write(backup, path.read_bytes(), known_ns)
    try:
        now_s = int(time.time())
        write(path, content, (now_s + (now_s == known_ns // 10**9)) * 10**9)
        yield
    finally:
        restore(root)


class Suite:
    """Runs chosen tests of one checkout."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.root, self.options, self.scratch = Path(options.root).resolve(), options, scratch
        shutil.copy(Path(__file__).with_name("fault_selection.py"), scratch)
        self.failing: set[str] = set()
        """Tests that fail without a fault."""

    def pytest(self, tests: list[str], *more: str) -> tuple[int | None, dict[str, Any]]:
        """Return the exit code (None after the limit) and the notes of the plugin."""
        listed, result = self.scratch / "tests.json", self.scratch / "result.json"
        listed.write_text(json.dumps(tests))
        result.write_text('{"selected": 0, "failed": null, "error": null}')
        files = sorted({file for test in tests if (self.root / (file := test.split("::")[0])).is_file()})
        if not files:
            return 5, json.loads(result.read_text())
        path = os.pathsep.join(filter(None, (str(self.scratch), os.environ.get("PYTHONPATH"))))
        own = {"PYTHONPATH": path, "FAULT_TESTS": str(listed), "FAULT_RESULT": str(result)}
        command = [
            *(self.options.python, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *("-p", "fault_selection", "--database", "sqlite", "-o", "faulthandler_timeout=0", "-m", MARKS),
            *(["--thorough"] if self.options.thorough else []),
            *(*shlex.split(self.options.extra), *more, *files),
        ]
        with (self.scratch / "output").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env={**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(self.options.limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return code, json.loads(result.read_text())

    def outcome(self, fault: Fault, contexts: Contexts | None) -> Fault:
        source = (self.root / fault["file"]).read_bytes() if (self.root / fault["file"]).is_file() else b""
        start = place_of(fault, source)
        if start is None:
            return {"outcome": "broken", "note": "the statement is not in this checkout, or more than once"}
        end = start + len(fault["before"].encode())
        tests = fault["tests"]
        if contexts:
            line = source.count(b"\n", 0, start) + 1
            place = {test: place for place, test in enumerate(tests)}
            covering_tests = contexts.tests(fault["file"], line, line + fault["end_line"] - fault["line"])
            tests = sorted(covering_tests, key=lambda test: (place.get(test, len(place)), test))
        while True:
            tests = [test for test in tests if test not in self.failing]
            with seeded(self.root, fault["file"], source[:start] + fault["after"].encode() + source[end:]):
                code, noted = self.pytest(tests)
            failed, common = noted["failed"], {"selected": noted["selected"]}
            if code in (None, 0, 5):
                return {"outcome": {None: "timeout", 0: "survived", 5: "no-tests"}[code], **common}
            if not failed:
                break
            if not self.options.confirm or self.pytest(tests[: tests.index(failed) + 1])[0] == 0:
                return {"outcome": "caught", "test": failed, **common}
            self.failing.add(failed)
        note = f"exit code {code}, collection error {noted['error'] or ''}"
        if self.pytest(tests, "--collect-only")[0] == 0:
            return {"outcome": "caught", "test": None, "note": note, **common}
        output = (self.scratch / "output").read_text(errors="replace")
        return {"outcome": "broken", "note": f"{note}; without the fault: {output[-1000:]}", **common}


def read_results(path: str | None) -> dict[str, Fault]:
    lines = Path(path).read_text().splitlines() if path and Path(path).exists() else []
    return {record["id"]: record for record in map(json.loads, lines)}


def append(path: str, record: Fault) -> None:
    with Path(path).open("a") as file:
        file.write(json.dumps(record) + "\n")


def run(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; the files are restored"))
    done = {*read_results(options.out), *caught(read_results(options.skip_caught_in))}
    only = set(filter(None, options.only.split(",")))
    lock = os.open(options.root, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run is at work in {options.root}")
    restore(Path(options.root))
    contexts = Contexts(options.contexts, Path(options.root)) if options.contexts else None
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        suite = Suite(options, Path(scratch))
        for fault in json.loads(Path(options.plan).read_text())["faults"]:
            if fault["id"] in done or (only and fault["id"] not in only):
                continue
            began = time.monotonic()
            record = {"id": fault["id"], "suite": options.name, **suite.outcome(fault, contexts)}
            append(options.out, record | {"seconds": round(time.monotonic() - began, 1)})
            print(fault["id"], record["outcome"], record.get("test") or record.get("note", ""), flush=True)


def caught(results: dict[str, Fault]) -> set[str]:
    return {name for name, record in results.items() if record["outcome"] == "caught"}


def infer(options: argparse.Namespace) -> None:
    """The old suite catches what a test caught whose file is equal in both checkouts."""
    new, old = read_results(options.new), read_results(options.out)
    planned_ids = {fault["id"] for fault in json.loads(Path(options.plan).read_text())["faults"]}
    for name in sorted(caught(new) & planned_ids - old.keys()):
        test = new[name].get("test") or ""
        old_file, new_file = (
            Path(root) / test.split("::")[0] for root in (options.old_root, options.new_root)
        )
        if (
            test
            and old_file.is_file()
            and new_file.is_file()
            and old_file.read_bytes() == new_file.read_bytes()
        ):
            append(options.out, {"id": name, "outcome": "caught", "test": test, "inferred": True})
            print(name, "caught", test)


def table(options: argparse.Namespace) -> None:
    faults = json.loads(Path(options.plan).read_text())["faults"]
    old, new = read_results(options.old), read_results(options.new)
    by_old, by_new = caught(old), caught(new)

    def row(title: str, some: list[Fault]) -> None:
        names = {fault["id"] for fault in some}
        before, both = len(names & by_old), len(names & by_old & by_new)
        ratio = f"{both / before:8.1%}" if before else "       -"
        print(f"{title:32}{len(names):7}{before:7}{both:7}{ratio}{len(names & by_new - by_old):9}")

    print(f"{'':32}{'faults':>7}{'old':>7}{'both':>7}{'ratio':>8}{'new only':>9}")
    row("all", faults)
    for group in ("kind", "room"):
        print()
        for value in sorted({fault[group] for fault in faults}):
            row(value, [fault for fault in faults if fault[group] == value])
    for title, results in (("old", old), ("new", new)):
        counts = Counter(
            results[fault["id"]]["outcome"] if fault["id"] in results else "not run" for fault in faults
        )
        print(
            f"\n{title}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()),
            end="",
        )
    print("\n\nCaught by the old suite alone:")
    for fault in faults:
        if fault["id"] in by_old - by_new:
            before, after = (" ".join(fault[side].split()) for side in ("before", "after"))
            outcome = new.get(fault["id"], {}).get("outcome", "not run")
            print(f"{fault['id']} {fault['file']}:{fault['line']} {fault['kind']}: {before} -> {after}")
            print(f"     in: {' '.join(fault['source'].split())}\n     new: {outcome}")
            print(f"     old: {old[fault['id']].get('test') or old[fault['id']].get('note')}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.suite.faults", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(function: Any, needed: str, **more: Any) -> argparse.ArgumentParser:
        own = commands.add_parser(function.__name__, help=function.__doc__)
        own.set_defaults(function=function)
        for name in needed.split():
            own.add_argument(f"--{name}", required=True)
        for name, default in more.items():
            own.add_argument(f"--{name.replace('_', '-')}", default=default, type=type(default or ""))
        return own

    command(plan, "contexts out", seed=1, count=120, root=".")
    running = command(
        run,
        "plan root python out",
        name="",
        only="",
        limit_s=600,
        contexts=None,
        skip_caught_in=None,
        extra="",
    )
    running.add_argument("--thorough", action="store_true", help="run the tests marked thorough, too")
    running.add_argument("--confirm", action="store_true", help="run what failed without the fault, too")
    command(infer, "plan new old-root new-root out")
    command(table, "plan old new")
    options = parser.parse_args(arguments)
    options.function(options)


if __name__ == "__main__":
    main()
