"""Validates environment sources from users against the node's rules, and converts them for uv."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import BuildFailure, SourceKind
from provisioning.environments.content import logical_lines

ALWAYS = ("pip",)
"""Packages of every environment resolved here: users need `pip install` and `%pip`."""
_ALLOWED_OPTIONS = ("--hash", "--pre", "--only-binary", "--no-binary", "--prefer-binary")
_INDEX_OPTIONS = (
    "-i",
    "--index-url",
    "--extra-index-url",
    "--find-links",
    "-f",
    "--no-index",
    "--trusted-host",
)


@dataclass(frozen=True, slots=True)
class RequirementsSource:
    """An input file for uv, and the user's requirements in it with their line numbers."""

    file_name: str
    text: str
    requirements: tuple[tuple[int, str], ...]


def prepare_source(kind: SourceKind, text: str) -> RequirementsSource:
    """Return the source as input for uv. Raises `BuildError` that names the invalid line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        raise _error_at(0, "The source contains a zero byte. Remove the zero byte.")
    if kind is SourceKind.PYPROJECT:
        return _pyproject(text)
    numbered = tuple(
        (number, line)
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    for number, line in numbered:
        _check(number, line.strip(), packages=kind is SourceKind.PACKAGES)
    if not numbered:
        raise _error_at(0, "The source contains no packages. Enter at least 1 package.")
    return RequirementsSource("requirements.in", text, numbered)


def is_locked(text: str) -> bool:
    """Return whether every line of a requirements file has a version and a hash."""
    lines = [line for line in logical_lines(text) if not line.startswith("-")]
    return bool(lines) and all(
        "--hash=" in line and re.match(r"[A-Za-z0-9._-]+(\[[^\]]*\])?\s*==\s*[^\s*]+", line) for line in lines
    )


def _check(number: int, line: str, *, packages: bool) -> None:
    first = re.split(r"[\s=]", line, maxsplit=1)[0]
    if first in _INDEX_OPTIONS:
        raise _error_at(
            number, f"Line {number} sets a package index, which only the node can set. Remove {first}."
        )
    if first.startswith("-") and (packages or first not in _ALLOWED_OPTIONS):
        raise _error_at(number, f"Line {number} has an unsupported option. Remove {first}.")
    if first.startswith((".", "/", "file:", "~")):
        raise _error_at(
            number, f"Line {number} installs from a file or folder. Write a package of the index instead."
        )


def _pyproject(text: str) -> RequirementsSource:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"line (\d+)", str(error))
        number = int(match[1]) if match else 0
        raise _error_at(number, f"The pyproject.toml is not valid: {error}. Correct the file.") from None
    project = document.get("project")
    if not isinstance(project, dict) or not isinstance(project.get("dependencies"), list):
        raise _error_at(0, "The pyproject.toml has no project.dependencies. Add the list.")
    dependencies = [dependency for dependency in project["dependencies"] if isinstance(dependency, str)]
    if "dependencies" in project.get("dynamic", ()):
        raise _error_at(0, "The dependencies are dynamic and need the project's files. List them instead.")
    lines = text.split("\n")
    numbered = []
    for dependency in dependencies:
        name = re.split(r"[^A-Za-z0-9._-]", dependency.strip(), maxsplit=1)[0]
        line_number = next((number for number, line in enumerate(lines, 1) if dependency in line), 0)
        _check(line_number, dependency.strip(), packages=True)
        numbered.append((line_number, dependency if line_number else name))
    # Only its dependencies: the node ignores indexes and sources of the project.
    return RequirementsSource("requirements.in", "\n".join(dependencies) + "\n", tuple(numbered))


def _error_at(number: int, message: str) -> BuildError:
    return BuildError(BuildFailure.RESOLUTION_FAILED, message, source_line=number)
