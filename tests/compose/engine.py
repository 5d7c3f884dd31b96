"""A Docker engine for tests: the running one, or a private one that leaves nothing behind.

The private engine has its own files, socket and control groups. Its mounts are in its own mount namespace. It
writes no firewall rules and creates no bridge: containers use the host's network.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAM = "BERTH_TEST_COMPOSE"
START_S = 60.0
END_S = 60.0
GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Engine:
    """How to reach the engine; `own` if it was started for the test."""

    compose: Sequence[str]
    own: bool
    variables: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""

    def run(
        self, *argv: str, limit_s: float = 120, check: bool = True, said: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program against this engine. Its output is also written to the file `said`."""
        done = subprocess.run(
            argv,
            env={**os.environ, **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
        if said is not None:
            with said.open("a") as file:
                file.write(f"$ {' '.join(argv)}\n{done.stdout}{done.stderr}\n")
        if check and done.returncode:
            pytest.fail(
                f"{' '.join(argv)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}"
            )
        return done

    def docker(self, *argv: str, limit_s: float = 120, check: bool = True, said: Path | None = None) -> str:
        return self.run("docker", *argv, limit_s=limit_s, check=check, said=said).stdout.strip()

    def has_image(self, tag: str) -> bool:
        return self.run("docker", "image", "inspect", tag, check=False).returncode == 0

    def version(self) -> str:
        server = self.docker("version", "--format", "{{.Server.Version}}")
        plugin = self.run(*self.compose, "version", "--short").stdout.strip()
        return (
            f"Docker {server}, Compose {plugin}, {'started for the test' if self.own else 'as it runs here'}"
        )


def compose_program() -> list[str]:
    """Compose of version 2 or later: Docker's plugin, or the program in BERTH_TEST_COMPOSE."""
    named = os.environ.get(PROGRAM)
    tried = [[named]] if named else [["docker", "compose"], ["docker-compose"]]
    for argv in tried:
        if shutil.which(argv[0]) is None:
            continue
        done = subprocess.run([*argv, "version", "--short"], capture_output=True, text=True)
        if done.returncode == 0 and int(done.stdout.strip().lstrip("v").partition(".")[0]) >= 2:
            return argv
    return pytest.skip(
        f"there is no Compose of version 2 or later ({' or '.join(' '.join(argv) for argv in tried)}): "
        f"install Docker's plugin, or set {PROGRAM} to the program docker-compose"
    )


def answers(variables: Mapping[str, str]) -> bool:
    done = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"],
        env={**os.environ, **variables},
        capture_output=True,
    )
    return done.returncode == 0


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """The running engine, else a private one; skips with the reason if neither is possible."""
    if os.geteuid() != 0:
        pytest.skip("only root may kill the services of containers and start an engine")
    if shutil.which("docker") is None:
        pytest.skip("there is no docker: apt-get install docker.io")
    compose = compose_program()
    buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode == 0
    builder = {} if buildx else {"DOCKER_BUILDKIT": "0"}
    if answers({}):
        yield Engine(compose, own=False, variables=builder)
        return
    missing = [
        name for name in ("dockerd", "containerd", "runc", "unshare", "setpriv") if not shutil.which(name)
    ]
    if missing:
        pytest.skip(f"no Docker engine runs here, and none can be started without {', '.join(missing)}")
    with own_engine() as (socket, parent):
        variables = {**builder, "DOCKER_HOST": f"unix://{socket}"}
        yield Engine(compose, own=True, variables=variables, cgroup_parent=parent)


@contextlib.contextmanager
def own_engine() -> Iterator[tuple[Path, str]]:
    """A private engine below one folder, with its socket and the parent of its control groups.

    Afterwards, mounts and firewall rules of the machine are as before.
    """
    before = traces()
    # Socket paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="berth-docker-"))
    socket, parent = folder / "docker.sock", f"/{folder.name}"
    argv = [
        "unshare", "--mount", "--propagation", "private",
        # Ends in order if the test is killed.
        "setpriv", "--pdeathsig", "TERM",
        "dockerd", "--host", f"unix://{socket}", "--cgroup-parent", parent,
        "--data-root", f"{folder}/data", "--exec-root", f"{folder}/run", "--pidfile", f"{folder}/pid",
        "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
        "--userland-proxy=false",
    ]  # fmt: skip
    try:
        with (folder / "log").open("w") as log:
            # Ctrl-C ends the test, which stops the engine.
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            deadline = time.monotonic() + START_S
            while not answers({"DOCKER_HOST": f"unix://{socket}"}):
                if process.poll() is not None or time.monotonic() > deadline:
                    # Restrictions of the machine are not an error of compose.yaml.
                    pytest.skip(
                        f"no Docker engine could be started here: {(folder / 'log').read_text()[-2000:]}"
                    )
                time.sleep(0.2)
            yield socket, parent
        finally:
            end(process, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        remove_groups(parent)
    assert not folder.exists(), f"{folder} could not be removed"
    assert below(folder) == [], "processes of the engine are left"
    after = traces()
    for name, traces_before in before.items():
        assert after[name] == traces_before, (
            f"{name} are not as before: {sorted(set(after[name]) ^ set(traces_before))}"
        )


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Stop the engine, then kill every process that names its folder."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    for _ in range(20):
        left = below(folder)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.2)
    process.wait(END_S)


def below(folder: Path) -> list[int]:
    """Processes that name the folder on their command line or are in the engine's control group."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, group = (path / "cmdline").read_bytes(), (path / "cgroup").read_text()
            if str(folder).encode() in words or f"/{folder.name}" in group:
                pids.append(int(path.name))
    return [pid for pid in pids if pid != os.getpid()]


def remove_groups(parent: str) -> None:
    """Remove the engine's empty control groups."""
    for top in (GROUPS, *(path for path in GROUPS.iterdir() if path.is_dir())):
        group = top / parent.lstrip("/")
        for child in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            child.rmdir()
        if group.is_dir():
            group.rmdir()


def traces() -> dict[str, list[str]]:
    """What engines leave on a machine: mounts, firewall rules, network devices."""
    found = {"mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "docker" in line]}
    for name, argv in {
        "rules of iptables": ["iptables-save"],
        "rules of nftables": ["nft", "list", "ruleset"],
        "network devices": ["ip", "-brief", "link"],
    }.items():
        if shutil.which(argv[0]):
            output = subprocess.run(argv, capture_output=True, text=True).stdout
            found[name] = [
                line for line in output.splitlines() if re.search("docker|^br-", line, re.IGNORECASE)
            ]
    return found
