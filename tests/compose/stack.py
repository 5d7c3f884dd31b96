"""compose.yaml on an engine, with its own project name and ports."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import httpx
import yaml

from portal.cli.loopback import LoopbackTransport
from provisioning.service.environ import ROOT
from tests.compose.engine import Engine
from tests.instance import Api, eventually
from tests.populate import PASSWORD
from tests.ports import consecutive_ports

BUILD_S = 1800
UP_S = 900
BUILD_ARGUMENTS = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
ONE_OFF = {"render", "migrate"}
BEFORE = "BERTH_TEST_BEFORE"
MIGRATIONS = "portal/*/migrations/[0-9]*.py"


class Stack:
    """Compose with compose.yaml, with one image at a time."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.name = f"berth-test-{secrets.token_hex(3)}"
        self.first = consecutive_ports(9)
        self.port = self.first
        self.tokens: dict[str, str] = {}
        self.log = folder / "compose.log"
        self._environment = folder / "deploy.env"
        self._environment.write_text(self._deploy_env())
        self._environment.chmod(0o600)
        self._file = folder / "compose.json"

    # -- what an administrator does ------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def image(self, version: str) -> str:
        return f"{self.name}:{version}"

    def use(self, version: str, tree: Path = ROOT) -> None:
        """Use compose.yaml of that tree with this image and these ports."""
        text = re.sub(
            r"\b800([1-8])\b",
            lambda port: str(self.first + int(port[1])),
            (ROOT / "compose.yaml").read_text(),
        )
        config = yaml.safe_load(text)
        arguments = {name: os.environ[name] for name in BUILD_ARGUMENTS if os.environ.get(name)}
        for service in config["services"].values():
            if "build" in service:
                service["image"] = self.image(version)
                service["build"] = {"context": str(tree), "network": "host", "args": arguments}
            if self.engine.cgroup_parent:
                service["cgroup_parent"] = self.engine.cgroup_parent
        self._file.write_text(json.dumps(config))

    def compose(self, *argv: str, limit_s: float = 120) -> str:
        command = (
            *self.engine.compose,
            "-p",
            self.name,
            "--env-file",
            str(self._environment),
            "-f",
            str(self._file),
        )
        return self.engine.run(*command, *argv, limit_s=limit_s, said=self.log).stdout

    def build(self) -> None:
        # Build one service: all use this image.
        self.compose("build", "render", limit_s=BUILD_S)

    def up(self, *options: str) -> None:
        self.compose("up", "-d", *options, limit_s=UP_S)

    def manage(self, *argv: str, **variables: str) -> str:
        options = [f"--env={name}={value}" for name, value in variables.items()]
        return self.compose("exec", "-T", *options, "web", "python", "manage.py", *argv).strip()

    def applied(self) -> set[str]:
        """The applied migrations that the current image knows."""
        app, found = "", set()
        for line in self.manage("showmigrations").splitlines():
            if not line.startswith(" "):
                app = line.strip()
            elif line.startswith(" [X] "):
                found.add(f"{app}.{line.split()[1]}")
        return found

    def remove(self) -> None:
        """Remove containers, volumes and images, ignoring errors."""
        if not self._file.exists():
            return
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", limit_s=300)
        for tag in self._images():
            self.engine.docker("image", "rm", "--force", tag)

    def left(self) -> list[str]:
        """Remaining containers, volumes, networks and images."""
        label = f"label=com.docker.compose.project={self.name}"
        listed = (("ps", "-a"), ("volume", "ls"), ("network", "ls"))
        found = [self.engine.docker(*command, "-q", "--filter", label).split() for command in listed]
        return [*(id_ for ids in found for id_ in ids), *self._images()]

    def _images(self) -> list[str]:
        listed = self.engine.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", self.name)
        return listed.split()

    # -- what can be seen of it ----------------------------------------------------------------

    def services(self) -> set[str]:
        """All services of compose.yaml without a profile."""
        services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
        return {name for name, service in services.items() if "profiles" not in service}

    def containers(self) -> dict[str, dict[str, Any]]:
        """The engine's status of each service's container."""
        ids = self.engine.docker(
            "ps", "-aq", "--filter", f"label=com.docker.compose.project={self.name}"
        ).split()
        details = json.loads(self.engine.docker("inspect", *ids)) if ids else []
        return {row["Config"]["Labels"]["com.docker.compose.service"]: row for row in details}

    def unhealthy(self) -> dict[str, str]:
        """The services that are not healthy, with their status."""
        containers, wrong = self.containers(), {}
        for name in sorted(self.services()):
            state = containers[name]["State"] if name in containers else {"Status": "not there"}
            if name in ONE_OFF:
                is_well = (state["Status"], state.get("ExitCode")) == ("exited", 0)
            else:
                is_well = state["Status"] == "running" and state["Health"]["Status"] == "healthy"
            if not is_well:
                health = state.get("Health", {})
                last = (health.get("Log") or [{}])[-1].get("Output", "")
                wrong[name] = f"{state['Status']} {state.get('ExitCode')} {health.get('Status')} {last}"
        return wrong

    def until_healthy(self, limit_s: float = 300) -> None:
        eventually(
            lambda: not self.unhealthy(), limit_s=limit_s, what=lambda: f"all are healthy: {self.unhealthy()}"
        )

    def answers(self) -> bool:
        """Whether the portal shows the sign-in page."""
        try:
            page = httpx.get(
                f"http://127.0.0.1:{self.port}/",
                headers={"Host": f"localhost:{self.port}"},
                follow_redirects=True,
                timeout=5,
            )
        except httpx.HTTPError:
            return False
        return page.status_code == 200 and "id_username" in page.text

    def api(self, user: str) -> Api:
        return Api(self, self.tokens[user])

    def origin(self, workspace_id: str) -> str:
        return f"http://ws-{workspace_id.replace('-', '')}.localhost:{self.port}"

    def contents(self, workspace_id: str, token: str, name: str) -> str:
        """A file of a workspace's home, read through its Jupyter."""
        with httpx.Client(transport=LoopbackTransport(), timeout=20) as client:
            answer = client.get(
                f"{self.origin(workspace_id)}/api/contents/{name}",
                headers={"Authorization": f"Bearer {token}"},
            )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["content"])

    def last_lines(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "40") if self._file.exists() else ""

    # -- how it is made ------------------------------------------------------------------------

    def _deploy_env(self) -> str:
        """deploy.env.example, completed as its first line says."""
        values = {
            "BERTH_PUBLIC_URL": self.url,
            "BERTH_DOMAIN": "localhost",
            # A container cannot have several system users.
            "BERTH_MULTIUSER": "0",
            "BERTH_TRUSTED_PROXIES": "",
            "BERTH_PORT": str(self.port),
            "BERTH_ADMIN_PASSWORD": PASSWORD,
            "BERTH_SKIP_DATA_SCIENCE": "1",
            **{
                name: secrets.token_hex(32)
                for name in (
                    "BERTH_SECRET_KEY", "BERTH_GATEWAY_SECRET", "BERTH_REDIS_PASSWORD", "POSTGRES_PASSWORD",
                    "BERTH_NODE_REDIS_PASSWORD", "BERTH_CONTROL_KEY", "BERTH_NODE_KEY",
                )
            },
        }  # fmt: skip
        lines, left = [], set(values)
        for line in (ROOT / "deploy.env.example").read_text().splitlines():
            name, is_set, _ = line.partition("=")
            lines.append(f"{name}={values[name]}" if is_set and name in values else line)
            left.discard(name)
        assert not left, f"deploy.env.example does not name {left}"
        return "\n".join(lines) + "\n"


def version_before() -> str | None:
    """The commit to upgrade from: `BEFORE`, else the newest release; None before the first release."""
    named = os.environ.get(BEFORE) or git("tag", "--list", "v*", "--sort=-version:refname").partition("\n")[0]
    return git("rev-parse", "--verify", f"{named}^{{commit}}") if named else None


def tree_of(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def migrations(tree: Path) -> set[str]:
    """The migrations of a tree: app and name."""
    return {f"{path.parent.parent.name}.{path.stem}" for path in tree.glob(MIGRATIONS)}


def git(*argv: str) -> str:
    return subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
