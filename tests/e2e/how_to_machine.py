"""A machine (systemd, network, files) on which commands of the documents run unchanged.

It shows this checkout at its own path; writes to it stay in memory. Installed packages are those of the
tests, so `make up` fetches nothing.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from provisioning.service.environ import ROOT
from tests import instance
from tests.systemd_machine import WAY_OUT, SystemdMachine

HOST = "berth.example.org"
READY = "Berth is ready"
START_LIMIT_S = 180
PREPARE = f"""
set -e
mkdir -p /run/checkout/upper /run/checkout/work
mount -t overlay overlay -o lowerdir={ROOT},upperdir=/run/checkout/upper,workdir=/run/checkout/work {ROOT}
mkdir -p /srv/backup /etc/ssl/berth
{WAY_OUT}
echo 127.0.0.1 {HOST} >> /etc/hosts
"""


def blocks(document: str, language: str = "sh") -> list[str]:
    """The fenced blocks of a document in one language, in order; empty: those without a language."""
    text = (ROOT / "docs" / f"{document}.md").read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [block for named, block in fenced if named == language]


class HowToMachine:
    """Runs blocks of documents in the checkout; continues once `make up` is ready, which keeps running."""

    def __init__(self, machine: SystemdMachine) -> None:
        self.machine = machine
        self.environ = {
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": f"{ROOT}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # No installation in the background.
            "BERTH_SKIP_DATA_SCIENCE": "1",
            "BERTH_NOTEBOOK_ENV": str(instance.need_notebook_environment()),
        }
        self._started = 0
        done = machine.run("sh", "-c", PREPARE)
        assert done.returncode == 0, done.stdout + done.stderr

    def do(self, block: str, *, given: str = "", user: str = "root", limit_s: float = 300) -> str:
        """Run a block line by line, as in a terminal; return its output."""
        outputs = []
        for line in commands(block):
            if re.search(r"\bmake up\b", line):
                self._up(line, user)
            else:
                outputs.append(self._run(line, given=given, user=user, limit_s=limit_s))
        return "".join(outputs)

    def fresh(self) -> None:
        """Stop everything and delete all data."""
        self._run("make down", check=False)
        self._run(
            "cd var && find . -mindepth 1 -maxdepth 1 ! -name environments -exec rm -rf {} +; "
            "rm -rf /srv/backup/* /tmp/rehearsal"
        )

    def output(self) -> str:
        """The output of the last `make up` so far."""
        return self.machine.ask("cat", f"/run/up-{self._started}.log", check=False)

    def _up(self, line: str, user: str) -> None:
        self._started += 1
        log = f"/run/up-{self._started}.log"
        done = self.machine.run(
            "systemd-run", "--quiet", "--collect", f"--unit=up-{self._started}", *self._settings(),
            f"--working-directory={ROOT}", "--", "bash", "-c", f"{_as(user, line)} > {log} 2>&1",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        until = time.monotonic() + START_LIMIT_S
        while READY not in self.output():
            ended = self.machine.run("systemctl", "is-active", f"up-{self._started}").stdout.strip()
            assert ended in ("active", "activating"), f"{line}\n{self.output()}"
            assert time.monotonic() < until, f"{line}\n{self.output()}"
            time.sleep(0.3)

    def _run(
        self, line: str, *, given: str = "", user: str = "root", limit_s: float = 300, check: bool = True
    ) -> str:
        done = subprocess.run(
            ["nsenter", "-t", str(self.machine.pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "--",
             "bash", "-o", "pipefail", "-c", f"cd {ROOT} && {_as(user, line)}"],
            env=self.environ, input=given, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}\n{self.output()}"
        return done.stdout

    def _settings(self) -> list[str]:
        return [f"--setenv={name}={value}" for name, value in self.environ.items()]


def _as(user: str, line: str) -> str:
    """The line run as another user, with that user's home."""
    if user == "root":
        return line
    return f"runuser -u {user} -- env HOME=/home/{user} bash -c {shlex.quote(line)}"


def commands(block: str) -> list[str]:
    """The lines of a block, with continuation lines joined."""
    joined = re.sub(r"\\\n\s*", "", block)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def needs(*programs: str) -> None:
    """Skip if one of these programs is not installed."""
    places = [Path(folder) for folder in ("/usr/sbin", "/usr/bin", "/sbin", "/bin")]
    missing = [program for program in programs if not any((place / program).exists() for place in places)]
    if missing:
        pytest.skip(f"needs the programs {', '.join(missing)}")
