"""Cloning with a real Git and a real server: complete or not at all, without leaking credentials."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_support import AGENT

from provisioning.agent.program import checkouts, git_settings
from tests.git_server import GitServer, git

HELPER = Path(AGENT).with_name("checkouts.py")
TOKEN = "planted-token-5f1d"
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    made = GitServer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


class Cloning:
    """Runs the helper like the agent and records its reports."""

    def __init__(self, server: GitServer, home: Path) -> None:
        self.server, self.home = server, home
        self.settings = ""
        self.egress = "open"

    def configure(self, **credential: str) -> None:
        folder = self.home.parent / "git"
        given = [{"host": "localhost", "origin": f"https://localhost:{self.server.port}", **credential}]
        self.settings = git_settings.configure(str(folder), given, [])

    def env(self) -> dict[str, str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GIT_SSL_CAINFO": str(self.server.authority),
        }
        return env | ({"GIT_CONFIG_SYSTEM": self.settings} if self.settings else {})

    def __call__(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        usual = {"what": "repository", "ref": "", "timeout_s": 60, "script_timeout_s": 20, "limit_mib": 0}
        given = {
            "home": str(self.home),
            "workspace": "11111111",
            "egress": self.egress,
            "egress_allow": "",
            "items": [{**usual, **item} for item in items],
        }
        env = self.env() | {"BERTH_CHECKOUTS": json.dumps(given)}
        argv = [sys.executable, "-I", "-S", str(HELPER)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=120)
        assert done.stderr == ""
        return [json.loads(line) for line in done.stdout.splitlines()]

    def one(self, name: str = "lib", **item: Any) -> dict[str, Any]:
        said = self({"url": self.server.url(name), "folder": name, **item})
        assert not [each for each in self.home.iterdir() if each.name.startswith(".berth-clone")]
        return said[-1]


@pytest.fixture
def cloning(server: GitServer, home: Path) -> Cloning:
    return Cloning(server, home)


def test_repository_is_cloned_with_its_branch_and_without_credentials(cloning, server, home):
    commit = server.repository("lib", {"a.txt": "a", "sub/b.txt": "b"})
    assert cloning.one() == {"what": "repository", "state": "cloned", "commit": commit}
    assert (home / "lib/sub/b.txt").read_text() == "b"
    assert git("status", "--porcelain", "--branch", cwd=home / "lib").startswith("## main...origin/main")
    assert git("config", "remote.origin.url", cwd=home / "lib") == server.url("lib")
    assert not (home / "lib/.git/hooks").exists()


@pytest.mark.parametrize("ref", ["v1", "other", "full", "short"])
def test_branch_tag_or_commit_is_checked_out(cloning, server, home, ref):
    server.repository("lib", {"a.txt": "a"})
    first = git("rev-parse", "v1^{commit}", cwd=server.root / "lib.git")
    named = {"full": first, "short": first[:9]}.get(ref, ref)
    assert cloning.one(ref=named)["commit"] == first
    assert not (home / "lib/second").exists()
    branch = git("branch", "--show-current", cwd=home / "lib")
    assert branch == ("other" if ref == "other" else "")


def test_missing_revision_leaves_no_folder(cloning, server, home):
    server.repository("lib", {"a.txt": "a"})
    for ref in ("nothing", "deadbeef", "0" * 40):
        assert cloning.one(ref=ref)["code"] == "no_ref"
    assert list(home.iterdir()) == []


def test_an_empty_repository_is_cloned(cloning, server, home):
    git("init", "--quiet", "--bare", "void.git", cwd=server.root)
    assert cloning.one("void") == {"what": "repository", "state": "cloned"}
    assert (home / "void/.git").is_dir()


@pytest.mark.parametrize("there", ["folder", "file", "link", "dangling"])
def test_existing_target_is_unchanged(cloning, server, home, there):
    server.repository("lib", {"a.txt": "a"})
    place = home / "lib"
    if there == "folder":
        place.mkdir()
        (place / "mine").write_text("mine")
    elif there == "file":
        place.write_text("mine")
    else:
        place.symlink_to(home.parent if there == "link" else home / "nothing")
    before = sorted((str(each), os.lstat(each).st_ino) for each in home.rglob("*"))
    assert cloning.one() == {"what": "repository", "state": "kept"}
    assert sorted((str(each), os.lstat(each).st_ino) for each in home.rglob("*")) == before
    assert server.requests == []


def test_existing_clone_is_not_pulled(cloning, server, home):
    commit = server.repository("lib", {"a.txt": "a"})
    cloning.one()
    git("reset", "--quiet", "--hard", "v1", cwd=home / "lib")
    said = cloning.one()
    assert said["state"] == "kept"
    assert said["commit"] == git("rev-parse", "v1", cwd=home / "lib") != commit


def test_missing_credential_does_not_prompt(cloning, server):
    server.repository("lib", {"a.txt": "a"})
    server.user, server.password = "oauth2", TOKEN
    assert cloning.one()["code"] == "auth"


def test_token_clones_and_leaves_no_trace_in_files_or_processes(cloning, server, home, tmp_path):
    commit = server.repository("lib", {"a.txt": "a"})
    server.user, server.password = "oauth2", TOKEN
    cloning.configure(username="oauth2", password=TOKEN)
    trace = tmp_path / "trace"
    wrapper = tmp_path / "bin"
    wrapper.mkdir()
    real = shutil.which("git")
    # Record the command line and environment of every Git process.
    (wrapper / "git").write_text(
        f'#!/bin/sh\ntr "\\0" "\\n" < /proc/$$/cmdline >> {trace}\nenv >> {trace}\nexec {real} "$@"\n'
    )
    (wrapper / "git").chmod(0o755)
    env = cloning.env
    cloning.env = lambda: env() | {"PATH": f"{wrapper}:{os.environ['PATH']}"}
    said = cloning({"url": server.url("lib"), "folder": "lib"})
    assert said[-1]["commit"] == commit
    assert TOKEN not in json.dumps(said)
    assert "clone" in trace.read_text() and TOKEN not in trace.read_text()
    for path in home.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    folder = Path(cloning.settings).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o500
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o400}


def test_pull_and_push_in_a_terminal_use_the_same_credential(cloning, server, home):
    server.repository("lib", {"a.txt": "a"})
    git("config", "http.receivepack", "true", cwd=server.root / "lib.git")
    server.user, server.password = "oauth2", TOKEN
    cloning.configure(username="oauth2", password=TOKEN)
    cloning.one()
    # Use the environment of a shell in the workspace, with settings in the home.
    (home / ".gitconfig").write_text("[user]\n\tname = ada\n\temail = ada@example.org\n")
    env = cloning.env() | {"GIT_TERMINAL_PROMPT": "0"}
    (home / "lib/third").write_text("3")
    for words in (["pull"], ["add", "third"], ["commit", "-m", "third"], ["push"]):
        subprocess.run(["git", *words], cwd=home / "lib", env=env, check=True, capture_output=True)
    pushed = git("rev-parse", "main", cwd=server.root / "lib.git")
    assert git("rev-parse", "HEAD", cwd=home / "lib") == pushed


def test_token_is_not_sent_to_other_hosts(cloning, server, home, tmp_path):
    other = GitServer(tmp_path / "other")
    try:
        other.repository("lib", {"a.txt": "a"})
        other.user, other.password = "oauth2", TOKEN
        cloning.configure(username="oauth2", password=TOKEN)
        both = tmp_path / "both.pem"
        both.write_text(server.authority.read_text() + other.authority.read_text())
        env = cloning.env
        cloning.env = lambda: env() | {"GIT_SSL_CAINFO": str(both)}
        assert cloning({"url": other.url("lib"), "folder": "lib"})[-1]["code"] == "auth"
        assert {given for _path, given in other.requests} == {""}
    finally:
        other.close()


def test_hooks_filters_and_submodules_do_not_run(cloning, server, home, tmp_path):
    seen = tmp_path / "ran"
    files = {
        ".gitattributes": "* filter=evil\n",
        ".gitmodules": f'[submodule "x"]\n\tpath = x\n\turl = {server.url("other")}\n',
        "hooks/post-checkout.sh": f"#!/bin/sh\ntouch {seen}\n",
        "a.txt": "a",
    }
    server.repository("lib", files)
    templates = tmp_path / "templates/hooks"
    templates.mkdir(parents=True)
    (templates / "post-checkout").write_text(f"#!/bin/sh\ntouch {seen}\n")
    (templates / "post-checkout").chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[init]\n\ttemplateDir = {templates.parent}\n[core]\n\thooksPath = {templates}\n"
        f'[filter "evil"]\n\tsmudge = touch {seen}; cat\n[submodule]\n\trecurse = true\n'
    )
    assert cloning.one()["state"] == "cloned"
    assert not seen.exists()
    assert all("/other.git" not in path for path, _given in server.requests)


@pytest.mark.parametrize(
    ("url", "egress", "code"),
    [
        ("https://localhost:1/a/lib", "open", "unreachable"),
        ("https://localhost:1/a/lib", "list", "unreachable"),
        ("https://nowhere.invalid/a/lib", "list", "egress"),
        ("https://nowhere.invalid/a/lib", "open", "unreachable"),
        ("ext::sh -c 'touch /tmp/never' %S lib", "open", "failed"),
        ("file:///etc/lib", "open", "failed"),
    ],
)
def test_unreachable_repository_is_reported(cloning, url, egress, code):
    """Addresses refused before do not bypass Git's own list of protocols."""
    cloning.egress = egress
    said = cloning({"url": url, "folder": "lib"})[-1]
    assert (said["state"], said["code"]) == ("failed", code)
    assert said["detail"]


@pytest.mark.parametrize(
    ("host", "addresses", "egress", "allow", "address"),
    [
        ("git.corp.example", ["10.1.2.3"], "open", "", "10.1.2.3"),
        ("git.corp.example", ["fd00::1"], "open", "10.0.0.0/8", "fd00::1"),
        ("git.corp.example", ["10.1.2.3"], "open", "10.1.0.0/16", None),
        ("github.com", ["140.82.121.4"], "open", "", None),
        ("github.com", ["140.82.121.4"], "list", "*.corp.example", "140.82.121.4"),
        ("git.corp.example", [], "list", "*.corp.example", None),
        ("git.corp.example", [], "list", "git.corp.example:22", ""),
        ("github.com", [], "none", "", ""),
        ("localhost", ["127.0.0.1"], "none", "", None),
    ],
)
def test_network_is_blamed_only_for_blocked_addresses(host, addresses, egress, allow, address):
    assert checkouts.blocked(host, 443, addresses, egress, allow) == address


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://git.example/a/b", ("git.example", 443)),
        ("https://git.example:8443/a", ("git.example", 8443)),
        ("ssh://git@git.example:2222/a", ("git.example", 2222)),
        ("git@Git.example:a/b.git", ("git.example", 22)),
    ],
)
def test_destination_of_a_repository_address(url, place):
    assert checkouts.destination(url) == place


def test_missing_repository_and_unknown_certificate_are_distinguished(cloning, server):
    assert cloning.one("nothing")["code"] == "not_found"
    server.repository("lib", {"a.txt": "a"})
    env = cloning.env
    cloning.env = lambda: {k: v for k, v in env().items() if k != "GIT_SSL_CAINFO"}
    assert cloning.one()["code"] == "certificate"


def test_missing_git_is_reported(cloning, server, tmp_path):
    env = cloning.env
    cloning.env = lambda: env() | {"PATH": str(tmp_path / "empty")}
    assert cloning.one()["code"] == "no_git"


def test_clone_is_stopped_at_its_timeout_and_removed(cloning, server, home, tmp_path):
    wrapper = tmp_path / "bin"
    wrapper.mkdir()
    (wrapper / "git").write_text("#!/bin/sh\nsleep 600\n")
    (wrapper / "git").chmod(0o755)
    env = cloning.env
    cloning.env = lambda: env() | {"PATH": f"{wrapper}:{os.environ['PATH']}"}
    assert cloning.one(timeout_s=0.2)["code"] == "timed_out"
    assert list(home.iterdir()) == []


def test_leftovers_of_an_ended_start_are_removed(cloning, server, home):
    server.repository("lib", {"a.txt": "a"})
    left = home / ".berth-clone-11111111-lib"
    (left / "objects").mkdir(parents=True)
    assert cloning.one()["state"] == "cloned"


def test_failed_clone_does_not_prevent_the_next(cloning, server, home):
    server.repository("lib", {"a.txt": "a"})
    said = cloning(
        {"url": server.url("nothing"), "folder": "nothing"},
        {"url": server.url("lib"), "folder": "lib", "what": "dotfiles"},
    )
    assert [(each["what"], each["state"]) for each in said if each["state"] in ("failed", "installed")] == [
        ("repository", "failed"), ("dotfiles", "installed"),
    ]  # fmt: skip


# --- dotfiles -------------------------------------------------------------------------------------


def dotfiles(cloning: Cloning, **item: Any) -> dict[str, Any]:
    return cloning.one("dots", what="dotfiles", **item)


def test_dotfiles_script_runs_once(cloning, server, home):
    server.repository(
        "dots", {"install.sh": "#!/bin/sh\necho x >> $HOME/ran\npwd > $HOME/where\n", ".vimrc": "v"}
    )
    said = dotfiles(cloning)
    assert (said["state"], said["note"]) == ("installed", "install.sh")
    assert (home / "where").read_text().strip() == str(home / ".dotfiles")
    assert not (home / ".vimrc").exists()
    assert dotfiles(cloning)["state"] == "kept"
    assert (home / "ran").read_text() == "x\n"


def test_dotfiles_without_script_are_linked_and_replace_no_file(cloning, server, home):
    (home / ".bashrc").write_text("mine")
    server.repository(
        "dots", {".vimrc": "v", ".bashrc": "theirs", ".gitignore": "x", "README": "r", ".config/a": "a"}
    )
    said = dotfiles(cloning)
    assert (said["state"], said["linked"], said["left"]) == ("installed", 2, 1)
    assert (home / ".vimrc").read_text() == "v" and (home / ".config/a").read_text() == "a"
    assert (home / ".bashrc").read_text() == "mine"
    assert not (home / ".gitignore").exists() and not (home / "README").exists()


def test_failed_or_slow_dotfiles_script_is_reported(cloning, server, home):
    server.repository("dots", {"bootstrap.sh": "#!/bin/sh\necho no such thing >&2\nexit 3\n"})
    said = dotfiles(cloning)
    assert said["code"] == "script_failed" and "no such thing" in said["detail"]
    shutil.rmtree(home / ".dotfiles")
    server.repository("slow", {"setup.sh": "#!/bin/sh\nsleep 600\n"})
    assert cloning.one("slow", what="dotfiles", script_timeout_s=0.2)["code"] == "script_timed_out"


def test_interrupted_dotfiles_script_runs_at_the_next_start(cloning, server, home):
    server.repository("dots", {"install.sh": "#!/bin/sh\necho x >> $HOME/ran\n"})
    dotfiles(cloning)
    (home / ".dotfiles/.git/berth-pending").write_text("")
    assert dotfiles(cloning)["state"] == "installed"
    assert (home / "ran").read_text() == "x\nx\n"
