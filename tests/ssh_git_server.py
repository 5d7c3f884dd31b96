"""A real OpenSSH server on a loopback port that serves Git repositories to holders of a key."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.git_server import git
from tests.instance import eventually
from tests.ports import consecutive_ports


def sshd() -> str | None:
    """Return the path of sshd, which is not on the search path of ordinary users."""
    program = shutil.which("sshd")
    return program or next(
        (path for path in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(path).exists()), None
    )


def new_key(path: Path, passphrase: str = "") -> str:
    """Create a key pair and return the private key."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "deploy", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path.read_text()


class SshGitServer:
    """Bare repositories below `root`, as `ssh://<user>@127.0.0.1:<port>/<root>/<name>.git`.

    `deploy_key` gives access to Git only; `known_host` is the server's line for known_hosts.
    """

    def __init__(self, root: Path) -> None:
        program = sshd()
        if program is None or shutil.which("ssh") is None:
            pytest.skip("no OpenSSH on this machine (Debian: openssh-server)")
        self.root = root
        self.user = getpass.getuser()
        self.port = consecutive_ports(1)
        new_key(root / "host")
        self.deploy_key = new_key(root / "deploy")
        public = (root / "deploy.pub").read_text().strip()
        command = f'{shutil.which("git-shell")} -c \\"$SSH_ORIGINAL_COMMAND\\"'
        (root / "authorized_keys").write_text(f'restrict,command="{command}" {public}\n')
        settings = root / "sshd_config"
        settings.write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {root}/host\nPidFile {root}/pid\n"
            f"AuthorizedKeysFile {root}/authorized_keys\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nLogLevel VERBOSE\n"
        )
        argv = [program, "-D", "-e", "-f", str(settings)]
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        # Newer versions lock out an address with many failures, which the tests cause on purpose.
        lenient = ["-o", "PerSourcePenalties=no"]
        if (
            subprocess.run([program, "-t", "-f", str(settings), *lenient], capture_output=True).returncode
            == 0
        ):
            argv += lenient
        self.log = root / "sshd.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually(self._answers, limit_s=60, what=self.log.read_text)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return False
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)

    @property
    def known_host(self) -> str:
        return self.known_as("127.0.0.1", (self.root / "host.pub").read_text())

    def known_as(self, host: str, public: str) -> str:
        return f"[{host}]:{self.port} {' '.join(public.split()[:2])}"

    def url(self, name: str, host: str = "127.0.0.1") -> str:
        return f"ssh://{self.user}@{host}:{self.port}{self.root}/{name}.git"

    def repository(self, name: str) -> str:
        """Create a repository with one file and return its commit."""
        work = self.root / f"{name}-work"
        work.mkdir()
        git("init", "--quiet", ".", cwd=work)
        (work / "read.me").write_text("over SSH\n")
        git("add", "--all", cwd=work)
        git("commit", "--quiet", "--message", "first", cwd=work)
        git("clone", "--quiet", "--bare", str(work), str(self.root / f"{name}.git"), cwd=self.root)
        return git("rev-parse", "HEAD", cwd=work)
