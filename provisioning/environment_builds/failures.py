"""Failures of a build, and their detection in uv's output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provisioning.environment_messages import BuildFailure, FailedLine
from provisioning.types import Failure

MAX_TEXT = 4000
_OF_THE_USER = frozenset(
    {
        BuildFailure.NO_SUCH_FOLDER,
        BuildFailure.NO_SUCH_PACKAGE,
        BuildFailure.RESOLUTION_FAILED,
        BuildFailure.HASH_MISMATCH,
        BuildFailure.TOO_LARGE,
        BuildFailure.CANCELLED,
        BuildFailure.BUILD_FAILED,
    }
)
_OF_THE_OPERATOR = frozenset({BuildFailure.NO_PYTHON, BuildFailure.UV_MISSING})

# Order matters: a full disk makes every other step fail too.
_SIGNS: tuple[tuple[BuildFailure, tuple[str, ...]], ...] = (
    (BuildFailure.DISK_FULL, ("No space left on device", "Disk quota exceeded", "os error 28)")),
    (BuildFailure.TOO_LARGE, ("File too large (os error 27)",)),
    (BuildFailure.HASH_MISMATCH, ("Hash mismatch for", "hash mismatch", "but none were provided for")),
    (
        BuildFailure.INDEX_UNREACHABLE,
        (
            "error sending request", "tunnel error", "Could not connect", "dns error", "operation timed out",
            "connection closed", "Connection refused", "Connection reset", "504 Gateway", "503 Service",
            "502 Bad Gateway", "500 Internal Server", "Failed to read `--find-links`",
            "failed to read from file `",
            # The response was incomplete.
            "HTTP status server error", "due to network timeout", "error decoding response body",
            "error reading a body from connection", "end of file before message length reached",
            "Failed to read from zip file",
        ),
    ),
    (
        BuildFailure.BUILD_FAILED,
        ("Failed to build", "build backend", "Call to `", "no usable wheels", "building is disabled"),
    ),
    (
        BuildFailure.RESOLUTION_FAILED,
        (
            "No solution found", "Couldn't parse", "not found in the package registry", "unsatisfiable",
            "not found in the provided package locations", "Failed to parse", "TOML parse error",
        ),
    ),
)  # fmt: skip
_NO_SUCH_PACKAGE = re.compile(
    r"Because (\S+) was not found in the (package registry|provided package locations)"
)
_WORDS = {
    BuildFailure.DISK_FULL: "The disk of the node is full. Free disk space, then build again.",
    BuildFailure.TOO_LARGE: "The environment exceeds its size limit. Remove packages.",
    BuildFailure.HASH_MISMATCH: (
        "A package does not match the lock file, or has no hash in it. Update the lock file."
    ),
    BuildFailure.INDEX_UNREACHABLE: (
        "The node's package index does not answer, sends incomplete responses, or uses a host that builds "
        "cannot reach. "
        "Check BERTH_NODE_PACKAGE_INDEX and BERTH_NODE_PACKAGE_HOSTS on the node."
    ),
    BuildFailure.BUILD_FAILED: (
        "A package could not be built from its source. Choose a version that has a wheel for this Python."
    ),
    BuildFailure.NO_SUCH_PACKAGE: "The package index has no package of that name. Correct the package list.",
    BuildFailure.RESOLUTION_FAILED: (
        "The package requirements conflict, or a version does not exist. Correct the package list."
    ),
}


class BuildError(Exception):
    """A failed build: its code, a public text that names one next action, and the line at fault."""

    def __init__(self, code: BuildFailure, message: str, *, source_line: int = 0, log_line: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.source_line = source_line
        self.log_line = log_line

    @property
    def failure(self) -> Failure:
        """The failure as sent to the control plane."""
        if self.code in _OF_THE_USER:
            return Failure(self.code.value, self.message[:MAX_TEXT], retryable=False, blame="user")
        retryable = self.code not in _OF_THE_OPERATOR
        return Failure(self.code.value, self.message[:MAX_TEXT], retryable=retryable, blame="operator")

    @property
    def failed_line(self) -> FailedLine | None:
        if not self.source_line and not self.log_line:
            return None
        return FailedLine(self.source_line, self.log_line[:2000])


def classify(lines: Sequence[str], source: Sequence[tuple[int, str]], *, resolving: bool) -> BuildError:
    """Return the error that uv's output describes. `source` has the user's numbered requirements."""
    text = "\n".join(lines)
    code = next((code for code, signs in _SIGNS if any(sign in text for sign in signs)), None)
    if code is None:
        code = BuildFailure.RESOLUTION_FAILED if resolving else BuildFailure.BUILD_FAILED
    causes = error_lines(lines)
    line = causes[0] if causes else ""
    if code is BuildFailure.INDEX_UNREACHABLE:
        # The last cause has the status or the reason; earlier ones only say that something failed.
        signs = dict(_SIGNS)[code]
        line = next((cause for cause in reversed(causes) if any(sign in cause for sign in signs)), line)
    if code is BuildFailure.RESOLUTION_FAILED and _NO_SUCH_PACKAGE.search(" ".join(causes)):
        code = BuildFailure.NO_SUCH_PACKAGE
    message = _WORDS[code]
    if code is not BuildFailure.DISK_FULL and causes:
        message = f"{message} uv reported: {' '.join(causes)[:1500]}"
    at_fault = 0 if code is BuildFailure.INDEX_UNREACHABLE else line_of(causes, source)
    return BuildError(code, message, source_line=at_fault, log_line=line)


def own_lock_error(error: BuildError) -> BuildError:
    """Return the error for a failed installation of a lock that Berth resolved.

    The list is not at fault if the index lacks a package that it listed itself. This can happen with several
    copies of an index.
    """
    if error.code not in (BuildFailure.RESOLUTION_FAILED, BuildFailure.NO_SUCH_PACKAGE):
        return error
    message = (
        "The node's package index listed a package that it does not have. The portal retries automatically."
    )
    if error.log_line:
        message = f"{message} uv reported: {error.log_line}"
    return BuildError(BuildFailure.INDEX_UNREACHABLE, message, log_line=error.log_line)


def error_lines(lines: Sequence[str]) -> list[str]:
    """Return the causes of uv's last `error:`, or that line itself."""
    start = next(
        (number for number in range(len(lines) - 1, -1, -1) if lines[number].lstrip().startswith("error:")),
        None,
    )
    if start is None:
        return [line.strip() for line in lines if line.strip()][-1:]
    message = [line.strip() for line in lines[start:] if line.strip()][:40]
    first = next((number for number, line in enumerate(message) if line.startswith("cause:")), len(message))
    causes = [line.removeprefix("cause:").strip() for line in message[first:]]
    return causes or message


def line_of(causes: Sequence[str], source: Sequence[tuple[int, str]]) -> int:
    """Return the line number of the requirement that an error names, or 0."""
    text = "\n".join(causes).lower()
    for number, requirement in sorted(source, key=lambda entry: -len(entry[1].strip())):
        if "=" in requirement and requirement.strip().lower() in text:
            return number
    names = set(re.findall(r"[a-z0-9][a-z0-9._-]*", re.sub(r"[_.]", "-", text)))
    names |= {name.split("==")[0] for name in names}
    for number, requirement in source:
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
        if match and re.sub(r"[-_.]+", "-", match[1]).lower() in names:
            return number
    return 0
