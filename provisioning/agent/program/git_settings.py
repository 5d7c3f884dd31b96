"""Git settings and credentials for the app and the clones, in the sandbox's own memory.

They are never written to the home.
"""

# ruff: noqa: PTH101, PTH103, PTH123, UP031

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config

    Item = dict[str, Any]


def prepare(config: Config) -> None:
    """Write them if the sandbox has a folder in memory. Problems are reported when a repository is cloned."""
    credentials = {credential.get("what", ""): credential for credential in config["git_credentials"]}
    try:
        if not config["git_dir"]:
            raise OSError("credentials need a sandbox")
        usable = [credential for credential in credentials.values() if not credential.get("problem")]
        path = configure(config["git_dir"], usable, config["known_hosts"])
        config["secret_env"]["GIT_CONFIG_SYSTEM"] = path
        for item in config["checkouts"]:
            item["problem"] = credentials.get(item["what"], {}).get("problem", "")
    except (OSError, KeyError) as error:
        sys.stderr.write("could not write Git settings: %s\n" % error)
        for item in config["checkouts"]:
            item["problem"] = "no_place" if item["credential"] else ""


def configure(folder: str, credentials: list[Item], known_hosts: list[str]) -> str:
    """Write Git's settings and `credentials` below `folder`; return the settings' path.

    An item of `credentials` is `{"host", "origin", "username", "password"}` for HTTPS or `{"host", "key",
    "known_hosts"}` for SSH. Git uses a credential only for exactly that host. Raises `OSError`.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    settings = ["[include]", "\tpath = /etc/gitconfig"]
    ssh: list[str] = []
    hosts = list(known_hosts)
    for number, credential in enumerate(credentials):
        path = "%s/credential-%d" % (folder, number)
        if credential.get("key"):
            _write(path, credential["key"].strip() + "\n")
            hosts += str(credential.get("known_hosts") or "").splitlines()
            ssh += [
                "Match host %s" % credential["host"],
                '  IdentityFile "%s"' % path,
                "  IdentitiesOnly yes",
            ]
        else:
            _write(path, "username=%s\npassword=%s\n" % (credential["username"], credential["password"]))
            settings += [
                '[credential "%s"]' % credential["origin"],
                "\thelper =",
                '\thelper = "!f() { test \\"$1\\" = get && cat %s; }; f"' % path,
            ]
    _write(folder + "/known_hosts", "".join(line + "\n" for line in hosts))
    ssh += ["Host *", "  GlobalKnownHostsFile %s/known_hosts" % folder, "  Include ~/.ssh/config"]
    _write(folder + "/ssh_config", "\n".join(ssh) + "\n")
    settings += ["[core]", "\tsshCommand = ssh -F %s/ssh_config" % folder]
    _write(folder + "/config", "\n".join(settings) + "\n")
    os.chmod(folder, 0o500)
    return folder + "/config"


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o400)
    with open(descriptor, "wb") as handle:
        handle.write(text.encode())
