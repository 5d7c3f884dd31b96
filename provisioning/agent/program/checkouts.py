"""Clones repositories into a home while the app runs, and reports progress. Standard library only.

The agent runs this file as a separate process (`cloning.py`), `python -I -S checkouts.py`, with its input as
JSON in BERTH_CHECKOUTS: `{"home", "workspace", "egress", "egress_allow", "items": [{"what", "url", "ref",
"folder", "timeout_s", "script_timeout_s", "limit_mib", "problem"}]}`. It writes one line of JSON per step to
standard output: `{"what", "state", "code", "commit", "percent", "note", "detail", "address"}`, with `state`
one of cloning, cloned, kept, installing, installed, failed; `address` is one that the network blocks.

A repository is cloned beside its destination and then renamed, so it is complete or absent. An existing
folder is kept unchanged. Hooks, submodules and filters of the repository never run. A script of dotfiles does
run, because that is its purpose, with the user's rights in the user's sandbox.
"""

# ruff: noqa: PTH104, PTH108, PTH110, PTH112, PTH113, PTH114, PTH115, PTH118, PTH123
# ruff: noqa: PTH208, PTH211, SIM105, UP031

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Item = dict[str, Any]

DOTFILES = "dotfiles"
DOTFILES_FOLDER = ".dotfiles"
PENDING = "berth-pending"
SCRIPTS = (
    "install.sh",
    "install",
    "bootstrap.sh",
    "bootstrap",
    "script/bootstrap",
    "setup.sh",
    "setup",
    "script/setup",
)
NEVER_LINKED = frozenset({".git", ".gitignore", ".gitattributes", ".gitmodules", ".github", ".gitlab-ci.yml"})
MAX_LINKS = 500
POLL_INTERVAL_S = 0.5
REPORT_EVERY_S = 3.0
WEIGH_S = 2.0
WEIGHED = 200000
DETAIL = 600
SETTINGS = (
    "protocol.allow=never",
    "protocol.https.allow=always",
    "protocol.ssh.allow=always",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "advice.detachedHead=false",
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=120",
)
"""Settings of every Git command, overriding all others."""
CODES = (
    ("disk_full", ("no space left", "disk quota exceeded")),
    ("host_key", ("host key verification failed", "no matching host key", "host identification has changed")),
    ("certificate", ("ssl certificate", "certificate verify", "certificate problem", "server certificate")),
    (
        "auth",
        (
            "authentication failed",
            "could not read username",
            "could not read password",
            "terminal prompts disabled",
            "permission denied (",
            "returned error: 401",
            "returned error: 403",
        ),
    ),
    ("egress", ("response 403", "http code 403 from proxy", "proxy connect aborted")),
    ("not_found", ("not found", "returned error: 404", "does not appear to be a git repository")),
    (
        "unreachable",
        (
            "could not resolve",
            "couldn't resolve",
            "connection refused",
            "failed to connect",
            "couldn't connect",
            "connection timed out",
            "operation timed out",
            "network is unreachable",
            "no route to host",
            "connection reset",
            "operation too slow",
        ),
    ),
)
"""Git's messages in lower case → error code; the first match applies."""


class StepFailed(Exception):
    """A failed step: `code`, the output, and the blocked address if known."""

    def __init__(self, code: str, detail: str = "", address: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail
        self.address = address


def report(item: str, state: str, **more: Any) -> None:
    line = {"what": item, "state": state}
    line.update((name, value) for name, value in more.items() if value not in (None, ""))
    data = (json.dumps(line) + "\n").encode()
    try:
        os.write(1, data)
    except OSError:
        pass  # the agent has ended


def tail(text: str) -> str:
    """Return the last lines that are not empty."""
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(lines[-6:])[-DETAIL:]


def code_of(text: str) -> str:
    """Return the error code for the output of a failed Git command."""
    lower = text.lower()
    for code, phrases in CODES:
        if any(phrase in lower for phrase in phrases):
            return code
    return "failed"


def destination(url: str) -> tuple[str, int]:
    """Return the host and port of a Git URL, which may be like `git@host:path`."""
    from urllib.parse import urlsplit

    if "://" not in url:
        return url.partition(":")[0].rpartition("@")[2].lower(), 22
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (22 if parts.scheme == "ssh" else 443)


def addresses_of(host: str, port: int) -> list[str]:
    import socket

    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []  # names may not resolve here: only the proxy resolves them
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def blocked(host: str, port: int, addresses: list[str], egress: str, allow: str) -> str | None:
    """Return the address that the workspace's network blocks ("" if unknown); None if it blocks none.

    Rejected connections look like those to a server that does not listen, so the rules decide.
    """
    import ipaddress

    networks = []
    for rule in filter(None, allow.split(",")):
        try:
            networks.append(ipaddress.ip_network(rule))
        except ValueError:
            name, _, rule_port = rule.partition(":")
            matches = host.endswith(name[1:]) if name.startswith("*.") else host == name
            if egress == "list" and matches and port in ((int(rule_port),) if rule_port else (80, 443)):
                return None
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        allowed = address.is_loopback or any(
            address.version == network.version and address in network for network in networks
        )
        if not allowed and (egress != "open" or not address.is_global):
            return text
    return "" if egress != "open" and not addresses else None


def disk_usage(folder: str) -> int:
    """Return the disk usage of a folder in bytes; counts at most about `WEIGHED` entries."""
    total, count = 0, 0
    pending = [folder]
    while pending and count < WEIGHED:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    count += 1
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    total += info.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return total


def environment(base: dict[str, str]) -> dict[str, str]:
    """Return the environment of Git: without prompts and without settings of the home."""
    inherited = ("GIT_CONFIG_SYSTEM", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH")
    env = {k: v for k, v in base.items() if not k.startswith("GIT_") or k in inherited}
    for name in ("SSH_ASKPASS", "DISPLAY", "BERTH_CHECKOUTS"):
        env.pop(name, None)
    env.update(GIT_TERMINAL_PROMPT="0", GIT_CONFIG_GLOBAL=os.devnull, LC_ALL="C", SSH_ASKPASS_REQUIRE="never")
    if "GIT_CONFIG_SYSTEM" not in env:
        env["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"
    return env


class CheckoutRun:
    """Checkout of one repository."""

    def __init__(
        self, item: Item, home: str, workspace: str, policy: tuple[str, str], env: dict[str, str]
    ) -> None:
        self.clock = time.monotonic
        self.item = item
        self.item_name = item["what"]
        self.home = home
        self.policy = policy
        self.env = env
        name = DOTFILES_FOLDER if self.item_name == DOTFILES else item["folder"]
        self.target = os.path.join(home, name)
        self.half = os.path.join(home, ".berth-clone-%s-%s" % (workspace, name.strip(".")))
        self.deadline = self.clock() + float(item["timeout_s"])
        self.reported_at = 0.0
        self.percent = -1

    def git(self, *arguments: str, cwd: str = "/") -> str:
        """Run Git and return its output. Raises `StepFailed`."""
        argv = ["git"]
        for setting in SETTINGS:
            argv += ["-c", setting]
        return self.run([*argv, *arguments], cwd, self.env, self.deadline, watch=True)

    def run(self, argv: list[str], cwd: str, env: dict[str, str], deadline: float, watch: bool) -> str:
        import subprocess
        import tempfile

        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
            except OSError as error:
                raise StepFailed("no_git" if argv[0] == "git" else "failed", str(error)) from error
            reason = self.wait(process, errors.fileno(), deadline, watch)
            error_text = self.read(errors)
            if reason:
                raise StepFailed(reason, tail(error_text))
            if process.returncode:
                text = error_text if watch else error_text + "\n" + self.read(output)
                raise (
                    self.failure(error_text, tail(text)) if watch else StepFailed("script_failed", tail(text))
                )
            return self.read(output)

    def failure(self, error_text: str, detail: str) -> StepFailed:
        """Return the failure of a Git command, by its output and the workspace's network."""
        code = code_of(error_text)
        if code not in ("egress", "unreachable"):
            return StepFailed(code, detail)
        host, port = destination(self.item["url"])
        address = blocked(host, port, addresses_of(host, port), *self.policy)
        return StepFailed(code if address is None else "egress", detail, address or "")

    @staticmethod
    def read(handle: Any) -> str:
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, size - 65536))
        return str(handle.read().decode("utf-8", "replace"))

    def wait(self, process: Any, errors: int, deadline: float, watch: bool) -> str:
        """Wait until the process has ended; return the reason if it was killed, else an empty string."""
        import subprocess

        weighed = self.clock()
        limit = int(self.item.get("limit_mib") or 0) << 20
        reason = ""
        while not reason:
            try:
                process.wait(POLL_INTERVAL_S)
                return ""
            except subprocess.TimeoutExpired:
                pass
            now = self.clock()
            if now > deadline:
                reason = "timed_out" if watch else "script_timed_out"
            elif watch and now - self.reported_at > REPORT_EVERY_S:
                self.progress(errors, now)
            if watch and limit and now - weighed > WEIGH_S:
                weighed = now
                reason = reason or ("too_large" if disk_usage(self.half) > limit else "")
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except OSError:
                pass
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                continue
        return reason

    def progress(self, errors: int, now: float) -> None:
        """Report the progress that Git writes as `Receiving objects:  45% (9/20)`."""
        size = os.fstat(errors).st_size
        text = os.pread(errors, 4096, max(0, size - 4096)).decode("utf-8", "replace")
        percent = -1
        for line in text.replace("\r", "\n").splitlines():
            if line.startswith("Receiving objects:"):
                digits = line.partition(":")[2].partition("%")[0].strip()
                percent = int(digits) if digits.isdigit() else percent
        if percent > self.percent:
            self.percent = min(percent, 100)
            self.reported_at = now
            report(self.item_name, "cloning", percent=self.percent)

    # -- the clone --------------------------------------------------------------------------

    def clone(self) -> None:
        import shutil

        shutil.rmtree(self.half, ignore_errors=True)  # left by an interrupted start
        if os.path.lexists(self.target):
            commit = self.head(self.target)
            if self.item_name == DOTFILES and os.path.exists(self.pending()):
                self.install(commit)
            else:
                report(self.item_name, "kept", commit=commit)
            return
        report(self.item_name, "cloning")
        try:
            options = ["clone", "--progress", "--no-checkout", "--no-recurse-submodules", "--template="]
            self.git(*options, "--", self.item["url"], self.half)
            self.check_out(self.item["ref"])
            commit = self.head(self.half)
            if self.item_name == DOTFILES:
                with open(os.path.join(self.half, ".git", PENDING), "w"):
                    pass
            if os.path.lexists(self.target):
                report(self.item_name, "kept", commit=self.head(self.target))
                return
            try:
                os.rename(self.half, self.target)
            except OSError as error:
                raise StepFailed("failed", str(error)) from error
        finally:
            shutil.rmtree(self.half, ignore_errors=True)
        if self.item_name == DOTFILES:
            self.install(commit)
        else:
            report(self.item_name, "cloned", commit=commit)

    def exists(self, name: str) -> bool:
        try:
            self.git("rev-parse", "--verify", "--quiet", "--end-of-options", name, cwd=self.half)
        except StepFailed:
            return False
        return True

    def check_out(self, ref: str) -> None:
        """Check out a branch, tag or commit. Raises `StepFailed` if it does not exist."""
        half = self.half
        if ref in ("", "HEAD"):
            if self.exists("HEAD^{commit}"):  # an empty repository has no commit
                self.git("reset", "--quiet", "--hard", "HEAD", cwd=half)
            return
        if self.exists("refs/remotes/origin/%s^{commit}" % ref):
            self.git("checkout", "--force", "-B", ref, "--track", "refs/remotes/origin/" + ref, cwd=half)
            return
        if self.exists("refs/tags/%s^{commit}" % ref):
            self.git("checkout", "--force", "--detach", "refs/tags/" + ref, cwd=half)
            return
        if 7 <= len(ref) <= 64 and all(sign in "0123456789abcdef" for sign in ref.lower()):
            if not self.exists(ref + "^{commit}") and len(ref) in (40, 64):
                try:
                    self.git("fetch", "--no-recurse-submodules", "origin", ref, cwd=half)
                except StepFailed:
                    raise StepFailed("no_ref") from None
            if self.exists(ref + "^{commit}"):
                self.git("checkout", "--force", "--detach", ref, cwd=half)
                return
        raise StepFailed("no_ref")

    def head(self, folder: str) -> str:
        """Return the commit of a folder; empty if the folder is not the root of a repository."""
        if not os.path.isdir(os.path.join(folder, ".git")):
            return ""
        try:
            return self.git("rev-parse", "--verify", "--quiet", "HEAD", cwd=folder).strip()[:64]
        except StepFailed:
            return ""

    # -- dotfiles ---------------------------------------------------------------------------

    def pending(self) -> str:
        return os.path.join(self.target, ".git", PENDING)

    def install(self, commit: str) -> None:
        """Run the dotfiles' script, or link them, once. An interrupted run is repeated at the next start."""
        try:
            descriptor = os.open(self.pending(), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            report(self.item_name, "kept", commit=commit)
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report(self.item_name, "kept", commit=commit)  # another workspace of this home is installing them
            os.close(descriptor)
            return
        try:
            report(self.item_name, "installing", commit=commit)
            script = next(
                (candidate for candidate in SCRIPTS if os.path.isfile(os.path.join(self.target, candidate))),
                "",
            )
            if script:
                self.run_script(script)
                report(self.item_name, "installed", commit=commit, note=script)
            else:
                linked, skipped = self.link()
                report(self.item_name, "installed", commit=commit, linked=linked, left=skipped)
        finally:
            try:
                os.unlink(self.pending())
            except OSError:
                pass
            os.close(descriptor)

    def run_script(self, script: str) -> None:
        path = os.path.join(self.target, script)
        argv = [path] if os.access(path, os.X_OK) else ["/bin/sh", path]
        env = {k: v for k, v in os.environ.items() if k != "BERTH_CHECKOUTS"}
        deadline = self.clock() + float(self.item["script_timeout_s"])
        try:
            self.run(argv, self.target, env, deadline, watch=False)
        except StepFailed as error:
            raise StepFailed(
                "script_failed" if error.code == "failed" else error.code, error.detail
            ) from error

    def link(self) -> tuple[int, int]:
        """Link dotfiles into the home; return the number of new links and of kept files."""
        linked = skipped = 0
        for name in sorted(os.listdir(self.target))[:MAX_LINKS]:
            if not name.startswith(".") or name in NEVER_LINKED:
                continue
            place, source = os.path.join(self.home, name), os.path.join(DOTFILES_FOLDER, name)
            try:
                os.symlink(source, place)
                linked += 1
            except FileExistsError:
                skipped += 0 if os.path.islink(place) and os.readlink(place) == source else 1
            except OSError as error:
                raise StepFailed("failed", str(error)) from error
        return linked, skipped


def main() -> int:
    config = json.loads(os.environ["BERTH_CHECKOUTS"])
    env = environment(dict(os.environ))
    for item in config["items"]:
        try:
            if item.get("problem"):
                raise StepFailed(item["problem"])
            policy = (config["egress"], config["egress_allow"])
            CheckoutRun(item, config["home"], config["workspace"], policy, env).clone()
        except StepFailed as error:
            report(item["what"], "failed", code=error.code, detail=error.detail, address=error.address)
        except Exception as error:
            report(item["what"], "failed", code="failed", detail=repr(error)[:DETAIL])
    return 0


if __name__ == "__main__":
    sys.exit(main())
