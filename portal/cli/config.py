"""Stores the portal's URL and the token in a file that only its user can read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from portal.cli.errors import CliError, NotSignedIn, UsageError

JOB_TOKEN = "berth_job_"  # noqa: S105  (the beginning of every token of a CI job)
DEFAULT_URL = "http://localhost:8000"


@dataclass(frozen=True, slots=True)
class Config:
    """Portal URL and token. `exchange_key` lets the same CI job exchange its ID token again (`ci`)."""

    url: str
    token: str = field(repr=False)
    exchange_key: str = field(default="", repr=False)


def path_of(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(base) / "berth" / "config.json"


def check_url(url: str) -> str:
    """Return the URL without a trailing slash. Raises `UsageError`."""
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises for an invalid port)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"“{url}” is not the address of a portal.", f"Use one like {DEFAULT_URL}.")
    return url


def load(environ: Mapping[str, str]) -> Config:
    """Return BERTH_URL and BERTH_TOKEN, else the file written by `berth login`. Raises `NotSignedIn`."""
    stored = _read(path_of(environ))
    environ_url = environ.get("BERTH_URL", "")
    url = check_url(environ_url or stored.get("url") or DEFAULT_URL)
    token = environ.get("BERTH_TOKEN", "")
    if not token and (not environ_url or url == stored.get("url")):
        # A stored token is only sent to the portal that issued it.
        token = stored.get("token", "")
    if not token:
        raise NotSignedIn(
            f"No token for {url}.",
            f"Run `berth login {url}`, or set BERTH_TOKEN.",
        )
    return Config(url=url, token=token)


def exchange_key(environ: Mapping[str, str], url: str) -> str:
    """Return the stored key for exchanges at `url`, or an empty string."""
    stored = _read(path_of(environ))
    return stored.get("exchange_key", "") if stored.get("url") == url else ""


def _read(path: Path) -> dict[str, str]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CliError(f"{path} cannot be read: {error}.", "Delete it and run `berth login`.") from error
    if not isinstance(data, dict):
        raise CliError(f"{path} is not a configuration file of berth.", "Delete it and run `berth login`.")
    return {key: value for key, value in data.items() if isinstance(value, str)}


def forget(environ: Mapping[str, str]) -> bool:
    """Delete the file; return whether it existed."""
    path = path_of(environ)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CliError(f"{path} cannot be deleted: {error.strerror}.", "Delete it yourself.") from error
    return True


def save(config: Config, environ: Mapping[str, str]) -> Path:
    """Replace the file atomically; only its user can read it."""
    path = path_of(environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp creates files with mode 0600.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".config-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({name: value for name, value in asdict(config).items() if value}, file, indent=2)
                file.write("\n")
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CliError(
            f"{path} cannot be written: {error.strerror}.", "Set BERTH_URL and BERTH_TOKEN instead."
        ) from error
    return path
