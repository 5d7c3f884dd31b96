"""Fetches the secrets and Git credentials of a start from the portal, and stores them.

Values exist only in this process, in the app, and in files in the sandbox's own memory.
"""

# ruff: noqa: PTH101, PTH103, PTH118, PTH123

from __future__ import annotations

import os
import time

from .portal import REVOKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .config import Config
    from .log import Log
    from .portal import Portal

TIMEOUT_S = 30.0  # time limit for requests to the portal


def fetch_secrets(
    config: Config, portal: Portal, log: Log, pause: Callable[[float], None], stopped: Callable[[], bool]
) -> str:
    """Fetch the secrets of this start; return why the app cannot start, or ""."""
    deadline = time.monotonic() + TIMEOUT_S
    wait_s = 0.1
    while True:
        status, answer = portal.post("secrets", {}, 10.0)
        if stopped():
            return "stopped"
        if status == 200:
            break
        if status in REVOKED:
            return "revoked"
        if 400 <= status < 500 and status not in (408, 429):
            return "secrets_refused"
        if time.monotonic() > deadline:
            return "secrets_unavailable"
        pause(wait_s)
        wait_s = min(wait_s * 2, 2.0)
    secrets = parse_secrets(answer)
    if secrets is None:
        return "secrets_refused"
    config["git_credentials"] = git_credentials(answer)
    secret = [
        credential.get(name, "") for credential in config["git_credentials"] for name in ("password", "key")
    ]
    log.mask_values([*(value for _name, _kind, value in secrets), *filter(None, secret)], b"[secret]")
    folder = config["secrets_dir"]
    if not folder and any(kind == "file" for _name, kind, _value in secrets):
        return "secrets_need_sandbox"
    try:
        config["secret_env"] = place_secrets(secrets, folder)
    except OSError as error:
        log.note("could not write secret files: %s" % error)  # noqa: UP031
        return "secrets_refused"
    return ""


def parse_secrets(answer: Any) -> list[tuple[str, str, str]] | None:
    """Return name, kind and value of each secret in the portal's answer; None if the answer is invalid."""
    secrets: list[tuple[str, str, str]] = []
    try:
        for entry in answer["secrets"]:
            name, kind, value = str(entry["name"]), str(entry["kind"]), str(entry["value"])
            if not (name.isascii() and name.isidentifier()) or kind not in ("env", "file") or "\0" in value:
                return None
            secrets.append((name, kind, value))
    except (KeyError, TypeError):
        return None
    return secrets


def git_credentials(answer: Any) -> list[Config]:
    """Return the repository credentials in the portal's answer, as `git_settings.configure` takes them."""
    credentials: list[Config] = []
    entries = answer.get("git") if isinstance(answer, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values()):
            credentials.append(entry)
    return credentials


def place_secrets(secrets: list[tuple[str, str, str]], folder: str) -> dict[str, str]:
    """Return the app's secret variables; write secret files below `folder`. Raises `OSError`."""
    env = {name: value for name, kind, value in secrets if kind == "env"}
    files = [(name, value) for name, kind, value in secrets if kind == "file"]
    if files:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        for name, value in files:
            path = os.path.join(folder, name)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
            with open(descriptor, "wb") as handle:
                handle.write(value.encode())
        os.chmod(folder, 0o500)
        env["BERTH_SECRETS_DIR"] = folder
    return env
