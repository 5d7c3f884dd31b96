"""Runs tests about users as an ordinary one: `python -m tests.ordinary_user PYTEST_ARGUMENT…`, as root.

A copy of the tree is given to `nobody`, and pytest runs there as that user, without capabilities. Closed
folders above this Python (such as `/root`) are replaced, in a private mount namespace, by empty ones that
contain only this Python.

Exit code: pytest's; 0 with a reason if not root or if there is no such user. The user need not have access to
the path of `--junitxml=PATH`; a run that is skipped as a whole is one skipped test there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO
from xml.sax.saxutils import quoteattr

UID = 65534
ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
LIMIT_S = 900
REPORT = "--junitxml="
SKIPPED = """<testsuites><testsuite>
<testcase classname="tests.ordinary_user" name="all"><skipped message={reason}/></testcase>
</testsuite></testsuites>
"""


def closed_to_others(path: Path) -> Path | None:
    """The topmost folder above `path` that others cannot enter."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)


def show(place: Path) -> None:
    """Make `place` accessible in this process's mount namespace. Raises `OSError`, `CalledProcessError`."""
    closed = closed_to_others(place)
    if closed is None:
        return
    with tempfile.TemporaryDirectory() as copy:
        mount("--bind", str(place), copy)
        mount("-t", "tmpfs", "-o", "mode=0755,size=1m", "tmpfs", str(closed))
        place.mkdir(parents=True)
        mount("--move", copy, str(place))


def copy_tree(target: Path) -> None:
    """Copy the files of this checkout, committed or not, except ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split(b"\0")):
        source = ROOT / os.fsdecode(name)
        if source.is_file() and not source.is_symlink():
            place = target / os.fsdecode(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
            place.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def skip(reason: str, report: BinaryIO | None) -> int:
    print(f"ordinary user: skipped, {reason}")
    if report is not None:
        report.write(SKIPPED.format(reason=quoteattr(f"ordinary user: {reason}")).encode())
    return 0


def main(arguments: list[str]) -> int:
    named = [argument.removeprefix(REPORT) for argument in arguments if argument.startswith(REPORT)]
    others = [argument for argument in arguments if not argument.startswith(REPORT)]
    with contextlib.ExitStack() as opened:
        # Read it now: later its folder may be hidden from this process.
        return run(others, opened.enter_context(Path(named[-1]).open("wb")) if named else None)


def run(arguments: list[str], report: BinaryIO | None) -> int:
    if os.geteuid() != 0:
        return skip("as all tests run as one here", report)
    if shutil.which("setpriv") is None or shutil.which("mount") is None:
        return skip("install util-linux", report)
    places = {Path(sys.base_prefix).resolve(), VENV.resolve()}
    with tempfile.TemporaryDirectory(prefix="berth-ordinary-") as folder:
        tree = Path(folder, "tree")
        try:
            copy_tree(tree)
            os.unshare(os.CLONE_NEWNS) if hasattr(os, "unshare") else _unshare()
            mount("--make-rslave", "/")
            for place in sorted(places):
                show(place)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            return skip(f"what it needs cannot be shown to it ({reason.strip()})", report)
        home = Path(folder, "home")
        home.mkdir()
        for path in (Path(folder), tree, home, *tree.rglob("*")):
            os.chown(path, UID, UID)
        variables = {
            name: value for name, value in os.environ.items() if name.startswith(("BERTH_TEST", "LANG"))
        }
        python = str(VENV.resolve() / "bin" / "python")
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(tree), **variables}
        argv = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all"]
        argv += [python, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={home}/tmp"]
        argv += [f"{REPORT}{home}/report.xml", *arguments]
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = subprocess.run(argv, cwd=tree, env=environ, timeout=LIMIT_S, check=False).returncode
            if report is not None and (home / "report.xml").exists():
                report.write((home / "report.xml").read_bytes())
            used = os.times()
            print(f"ordinary user: {used.children_user + used.children_system:.0f} CPU seconds")
            return code
        print(f"ordinary user: not done after {LIMIT_S} s")
        return 1


def _unshare() -> None:
    """`os.unshare`, which Python has from 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
