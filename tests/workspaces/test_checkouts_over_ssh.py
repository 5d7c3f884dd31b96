"""Repositories over SSH, from a portal secret to a clone, with real Git and OpenSSH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.workspaces import checkouts
from provisioning.agent.program import checkouts as helper
from provisioning.agent.program import git_settings
from provisioning.git_urls import KNOWN_HOSTS
from tests.ssh_git_server import SshGitServer, new_key

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshGitServer]:
    made = SshGitServer(tmp_path_factory.mktemp("ssh"))
    made.commit = made.repository("lib")  # type: ignore[attr-defined]
    yield made
    made.close()


class Cloning:
    """Turns a secret into a credential and clones with it, like portal and agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.settings = ""

    def env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GIT_CONFIG_SYSTEM": self.settings,
        }

    def __call__(self, url: str, secret: str, of: str = "") -> dict[str, Any]:
        """Return the last report; with `of`, the secret is for another address."""
        given = checkouts._credential(of or url, secret)
        problem = given.get("problem", "")
        usable = [] if problem else [{"what": "repository", **given}]
        self.settings = git_settings.configure(str(self.folder / "git"), usable, list(KNOWN_HOSTS))
        item = {"what": "repository", "url": url, "folder": "lib", "ref": "", "problem": problem}
        item |= {"timeout_s": 60, "script_timeout_s": 20, "limit_mib": 0}
        told = {
            "home": str(self.home),
            "workspace": "1" * 8,
            "egress": "open",
            "egress_allow": "",
            "items": [item],
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(helper.__file__)],
            env=self.env() | {"BERTH_CHECKOUTS": json.dumps(told)},
            capture_output=True, text=True, check=True, timeout=120, start_new_session=True,
        )  # fmt: skip
        return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def cloning(tmp_path: Path) -> Cloning:
    return Cloning(tmp_path)


def secret(server: SshGitServer, *, key: str = "", line: str | None = None) -> str:
    """Return the saved secret: the deploy key followed by the known_hosts line of the server."""
    return f"{key or server.deploy_key}{server.known_host if line is None else line}\n"


def test_deploy_key_works_for_clone_and_later_pull(cloning, server):
    said = cloning(server.url("lib"), secret(server))
    assert (said["state"], said.get("commit")) == ("cloned", server.commit), said
    cloned = cloning.home / "lib"
    assert (cloned / "read.me").read_text() == "over SSH\n"
    # The key is beside the settings, readable by its user only, and not in the home.
    (key,) = (cloning.folder / "git").glob("credential-*")
    assert key.stat().st_mode & 0o777 == 0o400
    body = server.deploy_key.splitlines()[1].encode()
    assert not [path for path in cloning.home.rglob("*") if path.is_file() and body in path.read_bytes()]
    pulled = subprocess.run(
        ["git", "-C", str(cloned), "pull", "--ff-only"],
        env=cloning.env(), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert pulled.returncode == 0, pulled.stderr


def test_key_with_windows_line_endings_works(cloning, server):
    assert cloning(server.url("lib"), secret(server).replace("\n", "\r\n"))["state"] == "cloned"


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("another_key", "auth"),
        ("key_with_a_passphrase", "auth"),
        ("unknown_host", "host_key"),
        ("another_host_key", "host_key"),
        ("no_such_repository", "not_found"),
        ("nobody_listens", "unreachable"),
        ("key_of_another_host", "auth"),
        ("a_token", "wrong_secret"),
    ],
)
def test_errors_are_distinguished_and_nothing_is_left(cloning, server, tmp_path, what, code):
    url, value, of = server.url("lib"), secret(server), ""
    match what:
        case "another_key":
            value = secret(server, key=new_key(tmp_path / "other"))
        case "key_with_a_passphrase":
            value = secret(server, key=new_key(tmp_path / "other", passphrase="long enough"))
        case "unknown_host":
            value = secret(server, line="")
        case "another_host_key":
            new_key(tmp_path / "forged")
            forged = (tmp_path / "forged.pub").read_text()
            value = secret(server, line=server.known_as("127.0.0.1", forged))
        case "no_such_repository":
            url = server.url("none")
        case "nobody_listens":
            url = url.replace(f":{server.port}/", ":1/")
        case "key_of_another_host":
            # The host key is known under both names; the secret is for one of them.
            public = (server.root / "host.pub").read_text()
            value = secret(server, line=server.known_as("localhost", public))
            url, of = server.url("lib", host="localhost"), url
        case "a_token":
            value = "ghp_planted"
    said = cloning(url, value, of)
    assert (said["state"], said.get("code")) == ("failed", code), said
    assert list(cloning.home.iterdir()) == []
