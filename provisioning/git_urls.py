"""Validation of Git URLs and of names of branches, tags and commits.

Valid URLs are `https://host[:port]/path`, `ssh://[user@]host[:port]/path` and `user@host:path`. Everything
else that Git accepts (files, helpers such as `ext::`, options, a password in the URL) is rejected, by the
portal at input and again by the node before it runs Git. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

MAX_URL = 500
MAX_REF = 200
MAX_FOLDER = 100
KNOWN_HOSTS = (
    "github.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
    "gitlab.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfuCHKVTjquxvt6CM6tdG4SLp1Btn/nOeHHE5UOzRdf",
    "bitbucket.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIazEu89wgQZ4bqs3d63QSMzYVa0MuJ2e2gKTKqu+UUO",
)
"""Published SSH keys of common hosts; keys of other hosts come with the secret."""

_PLAIN = re.compile(r"[!-~]+\Z")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}"
_PATH = r"[A-Za-z0-9._~/%+@:,=-]+"
_HTTPS = re.compile(rf"https://(?P<host>{_HOST})(?::(?P<port>\d{{1,5}}))?/(?P<path>{_PATH})\Z")
_SSH = re.compile(
    rf"ssh://(?:(?P<user>{_USER})@)?(?P<host>{_HOST})(?::(?P<port>\d{{1,5}}))?/(?P<path>{_PATH})\Z"
)
_SHORT = re.compile(rf"(?P<user>{_USER})@(?P<host>{_HOST}):(?P<path>[A-Za-z0-9._~/][A-Za-z0-9._~/%+@,=-]*)\Z")
_HIDDEN = re.compile(r"%(?:[01][0-9a-fA-F]|7[fF]|2[eEfF]|5[cC])")
"""An escaped control character, dot or slash."""
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*\Z")
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+@#-]*\Z")


class UrlProblem(StrEnum):
    """Why a URL or name is rejected."""

    EMPTY = "empty"
    TOO_LONG = "too_long"
    CHARACTERS = "characters"
    OPTION = "option"
    CREDENTIALS = "credentials"
    SCHEME = "scheme"
    SHAPE = "shape"


@dataclass(frozen=True, slots=True)
class GitUrl:
    """A valid URL. `port` is 0 for the scheme's default; `folder` is the default name of a clone."""

    url: str
    scheme: str
    user: str
    host: str
    port: int
    folder: str

    @property
    def origin(self) -> str:
        """`https://host[:port]` as in Git's settings; empty for SSH."""
        return f"https://{self.host}{f':{self.port}' if self.port else ''}" if self.scheme == "https" else ""


def parsed(url: str) -> GitUrl | UrlProblem:
    """Parse a URL; return the reason if it is rejected."""
    if not url:
        return UrlProblem.EMPTY
    if len(url) > MAX_URL:
        return UrlProblem.TOO_LONG
    if url.startswith("-"):
        return UrlProblem.OPTION
    if not _PLAIN.match(url) or _HIDDEN.search(url):
        return UrlProblem.CHARACTERS
    scheme, separator, rest = url.partition("://")
    if "::" in url.partition("/")[0] or (separator and scheme not in ("https", "ssh")):
        return UrlProblem.SCHEME
    if separator and _has_credentials(scheme, rest.partition("/")[0]):
        return UrlProblem.CREDENTIALS
    matches = {"https": _HTTPS.match, "ssh": _SSH.match}[scheme] if separator else _SHORT.match
    match = matches(url)
    if match is None:
        return UrlProblem.SHAPE if separator or "@" in url else UrlProblem.SCHEME
    parts = match.groupdict()
    port = int(parts.get("port") or 0)
    path = parts["path"].removesuffix("/")
    steps = (path if separator else path.removeprefix("/")).split("/")
    folder = steps[-1].removesuffix(".git")
    outside = ".." in steps or "." in steps or "" in steps
    if parts.get("port") and not 0 < port < 65536:
        return UrlProblem.SHAPE
    if outside or ".." in parts["host"] or not _FOLDER.match(folder) or len(folder) > MAX_FOLDER:
        return UrlProblem.SHAPE
    kind = scheme if separator else "ssh"
    return GitUrl(url, kind, parts.get("user") or "", parts["host"].lower(), port, folder)


def _has_credentials(scheme: str, authority: str) -> bool:
    user, at, _host = authority.rpartition("@")
    return bool(at) and (scheme == "https" or ":" in user)


def ref_problem(ref: str) -> UrlProblem | None:
    """Return why a name of a branch, tag or commit is invalid, or None. Empty means the default branch."""
    if not ref:
        return None
    if len(ref) > MAX_REF:
        return UrlProblem.TOO_LONG
    if ref.startswith("-"):
        return UrlProblem.OPTION
    parts = ref.split("/")
    bad_part = any(not part or part.startswith(".") or part.endswith((".", ".lock")) for part in parts)
    if not _REF.match(ref) or ".." in ref or "@{" in ref or bad_part:
        return UrlProblem.SHAPE
    return None
