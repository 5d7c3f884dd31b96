"""Creates virtual environments from lock files; an interrupted one is never taken for complete."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from provisioning.service import uv_install
from provisioning.service.console import Problem

STAMP = ".berth-complete"
LAUNCHER = Path(__file__).with_name("launcher.py")
_OFFLINE = (
    "name resolution", "Name or service not known", "Max retries exceeded", "NewConnectionError",
    "Connection refused", "Network is unreachable", "Read timed out", "ConnectTimeout",
    "No matching distribution found", "Could not find a version", "Could not fetch URL",
)  # fmt: skip


def fingerprint(lock: Path) -> str:
    """Return a hash that changes with the locked packages or the Python version."""
    python = ".".join(map(str, sys.version_info[:2]))
    return hashlib.sha256(lock.read_bytes() + python.encode()).hexdigest()


def is_complete(target: Path, lock: Path) -> bool:
    """Return whether `target` contains exactly the packages of `lock`, and was created at this path."""
    try:
        stamp = (target / STAMP).read_text()
    except OSError:
        return False
    return stamp == _stamp(target, lock) and (target / "bin" / "python").exists()


def _stamp(target: Path, lock: Path) -> str:
    # Includes its path: scripts in an environment contain it, so a moved environment is broken.
    return f"{fingerprint(lock)} {target}\n"


def count_packages(lock: Path) -> int:
    """Return the number of packages in the lock, without those for other systems."""
    lines = re.findall(r"^[A-Za-z0-9][^\s=]*==.*", lock.read_text(), flags=re.MULTILINE)
    return sum(not re.search(r"== '(win32|nt|darwin)'", line) for line in lines)


def build(
    target: Path,
    lock: Path,
    *,
    log: Path,
    python: str = sys.executable,
    clear: bool = True,
    environ: dict[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Install the packages of `lock` in `target` with uv, or else with pip. The stamp is written last.

    `clear` empties an existing folder; otherwise packages are updated in place. Raises `Problem` for a
    missing venv module, disk or network errors, and wrong hashes.
    """
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            version = ".".join(map(str, sys.version_info[:2]))
            raise Problem(
                f"This Python has no “{module}” module for virtual environments.",
                f"On Debian or Ubuntu: apt install python{version}-venv. Then run the command again.",
            )
    environ = _clean_environ(os.environ if environ is None else environ)
    log.parent.mkdir(parents=True, exist_ok=True)
    (target / STAMP).unlink(missing_ok=True)
    with log.open("w") as output:
        usable = not clear and _is_usable(target / "bin" / "python")
        if not usable:
            progress("creating the environment")
            _run([python, "-m", "venv", "--clear", str(target)], output, environ, lambda _: None, log)
        installed = target / "bin" / "python"
        if not _install_with_uv(installed, lock, output, environ, progress, log):
            _install_with_pip(installed, lock, output, environ, progress, log)
    (target / STAMP).write_text(_stamp(target, lock))


def _install_with_uv(
    python: Path,
    lock: Path,
    output: object,
    environ: dict[str, str],
    progress: Callable[[str], None],
    log: Path,
) -> bool:
    """Return whether uv has installed all of `lock`. Where it has not, pip says why."""
    try:
        if own := uv_install.pinned(lock):
            progress("downloading uv")
            first = python.parent.parent / "uv.txt"
            first.write_text(own)
            _run([*_pip(python), "-r", str(first)], output, environ, lambda _: None, log)
        if (uv := uv_install.command(python, lock, environ)) is None:
            return False
        progress(f"installing {count_packages(lock)} packages")
        argv, variables = uv
        _run(argv, output, variables, lambda _: None, log)
    except Problem:
        return False
    return True


def _install_with_pip(
    python: Path,
    lock: Path,
    output: object,
    environ: dict[str, str],
    progress: Callable[[str], None],
    log: Path,
) -> None:
    total, count = count_packages(lock), 0

    def follow(line: str) -> None:
        nonlocal count
        if line.startswith("Collecting "):
            count += 1
            progress(f"downloading package {count} of {total}")
        elif line.startswith("Installing collected packages"):
            progress(f"installing {total} packages")

    _run([*_pip(python), "-r", str(lock)], output, environ, follow, log)


def _pip(python: Path) -> list[str]:
    return [
        str(python), "-m", "pip", "install", "--no-deps", "--require-hashes", "--no-input",
        "--disable-pip-version-check", "--no-warn-script-location", "--progress-bar", "off", "--retries", "2",
        "--timeout", "20",
    ]  # fmt: skip


def _clean_environ(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"}
    return {key: value for key, value in environ.items() if key not in dropped}


def _is_usable(python: Path) -> bool:
    try:
        process = subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


def _run(
    argv: Sequence[str], output: object, environ: dict[str, str], follow: Callable[[str], None], log: Path
) -> None:
    # Ends with this process, so an interrupted build never continues beside the next one.
    launch = (sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(int(signal.SIGKILL)), "-", "-")
    lines: list[str] = []
    with subprocess.Popen(
        [*launch, *argv],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                output.write(line)  # type: ignore[attr-defined]
                follow(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _problem(lines, log)


def _problem(lines: list[str], log: Path) -> Problem:
    text = "\n".join(lines)
    hint = "Then run the command again."
    if "No space left on device" in text:
        return Problem("The disk is full.", f"Free some space. {hint}")
    if "DO NOT MATCH THE HASHES" in text:
        return Problem(
            "A downloaded package does not match the lock file.",
            f"Check the package index that pip uses (`pip config list`). {hint}",
        )
    if any(sign in text for sign in _OFFLINE):
        return Problem(
            "pip could not download the packages: the package index did not answer or lacks one.",
            f"Check the network, or point PIP_INDEX_URL at a mirror. {hint} Details: {log}",
        )
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    error = next((line for line in lines if line.startswith(("ERROR:", "Error:"))), last)
    return Problem(f"The packages could not be installed: {error.strip()}", f"Details: {log}")
