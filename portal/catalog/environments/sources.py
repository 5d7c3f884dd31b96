"""Parses and validates the sources of environments before they reach a node.

Accepts only names and versions from the package index, and VS Code from the npm registry. Options, URLs and
files are rejected: they would make a node fetch from elsewhere, or read its files.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import DEFAULT_PYTHON, PYTHONS, SourceKind
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from provisioning.environment_messages import MAX_LOCK, MAX_SOURCE
from provisioning.environments.content import NPM_LINE, logical_lines
from provisioning.environments.folders import is_plain

NOTEBOOK_PACKAGES = ("jupyterlab", "marimo")
"""Packages for templates that start notebooks."""
NOTEBOOK_PROGRAMS = frozenset({"jupyter-lab", "marimo"})
"""Programs of these packages: their templates require an environment that includes them."""
MAX_SHOWN = 80


def own_python() -> str:
    """Return the portal's own Python version if supported: the one most likely on each node."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    return own if own in PYTHONS else DEFAULT_PYTHON


def python_of(text: str) -> str:
    """Return a supported Python version. Raises `InvalidInput`."""
    if text not in PYTHONS:
        params = {"known": list(PYTHONS)}
        raise _source_error("python", Reason(EnvironmentCode.BAD_PYTHON, params))
    return text


def checked(kind: str, text: str) -> tuple[SourceKind, str]:
    """Return the source in stored form. Raises `InvalidInput`.

    A lock without hashes is stored as a requirements file.
    """
    if kind not in SourceKind.values:
        raise _source_error(
            "source_kind", Reason(CommonCode.CHOOSE_ONE_OF, {"known": list(SourceKind.values)})
        )
    chosen = SourceKind(kind)
    if chosen == SourceKind.FOLDER:
        return chosen, _folder(text)
    text = strip_nul(text).replace("\r\n", "\n").replace("\r", "\n").strip() + "\n"
    limit = MAX_LOCK if chosen == SourceKind.LOCK else MAX_SOURCE
    if len(text.encode()) > limit - 1024:
        raise _source_error("source", Reason(EnvironmentCode.SOURCE_TOO_LONG, {"limit": limit // 1024 - 1}))
    if chosen == SourceKind.PYPROJECT:
        _check_pyproject(text)
        return chosen, text
    problems = []
    count = hashed = 0
    for number, line in _numbered_lines(text):
        count += 1
        hashed += "--hash" in line
        if (problem := _problem_of(line, lock=chosen == SourceKind.LOCK)) is not None:
            params = {"line": number, "text": problem[:MAX_SHOWN]}
            problems.append(Reason(EnvironmentCode.LINE_NOT_VALID, params))
    if problems:
        raise _source_error("source", *problems[:10])
    if not count:
        code = EnvironmentCode.LOCK_EMPTY if chosen == SourceKind.LOCK else EnvironmentCode.NOTHING_ASKED_FOR
        raise _source_error("source", Reason(code))
    if chosen == SourceKind.LOCK and hashed < count:
        if len(text.encode()) > MAX_SOURCE - 1024:
            raise _source_error(
                "source", Reason(EnvironmentCode.SOURCE_TOO_LONG, {"limit": MAX_SOURCE // 1024 - 1})
            )
        chosen = SourceKind.REQUIREMENTS
    return chosen, text


def _folder(text: str) -> str:
    """Return the path of a folder on nodes. Raises `InvalidInput`."""
    path = strip_nul(text).strip()
    path = path.rstrip("/") or path
    if not path:
        raise _source_error("source", Reason(EnvironmentCode.NO_FOLDER_NAMED))
    if not is_plain(path):
        raise _source_error("source", Reason(EnvironmentCode.FOLDER_NOT_VALID, {"folder": path[:MAX_SHOWN]}))
    return path


def lines_in(kind: str, text: str) -> list[str]:
    """Return the requirements of a source, one per line, in order and without hashes."""
    if kind == SourceKind.PYPROJECT:
        return _dependencies(text)
    if kind == SourceKind.FOLDER:
        return []
    return [line.partition("--hash")[0].strip() for _, line in _numbered_lines(text)]


def names_in(kind: str, text: str) -> list[str]:
    """Return the package names of a source in order; empty if it is invalid."""
    names = []
    for line in lines_in(kind, text):
        if program := NPM_LINE.fullmatch(line):
            names.append(program["name"])
            continue
        try:
            names.append(Requirement(line).name)
        except InvalidRequirement:
            continue
    return list(dict.fromkeys(names))


def requirements_in(kind: str, text: str) -> list[Requirement]:
    """Return the requirements from the package index in order, without invalid lines and npm's."""
    requirements: list[Requirement] = []
    if kind == SourceKind.FOLDER:
        return requirements
    lines = (
        _dependencies(text) if kind == SourceKind.PYPROJECT else [line for _, line in _numbered_lines(text)]
    )
    for line in lines:
        try:
            requirements.append(Requirement(line.partition("--hash")[0].strip()))
        except InvalidRequirement:
            continue
    return requirements


PROGRAMS = {"jupyterlab": "jupyter-lab", "marimo": "marimo", "code-server": "code-server"}
"""Template programs by package."""


def programs_of(kind: str, text: str, *, notebook: bool) -> frozenset[str]:
    """Return the template programs that a source will provide once built."""
    names = names_in(kind, to_build(kind, text, notebook=notebook))
    return frozenset(PROGRAMS[name] for name in map(str.lower, names) if name in PROGRAMS)


def to_build(kind: str, text: str, *, notebook: bool) -> str:
    """Return the source to build: with the notebook packages added, if wanted and possible."""
    if not notebook or kind not in (SourceKind.PACKAGES, SourceKind.REQUIREMENTS):
        return text
    there = {name.lower() for name in names_in(kind, text)}
    missing = [name for name in NOTEBOOK_PACKAGES if name not in there]
    return text.rstrip("\n") + "\n" + "".join(f"{name}\n" for name in missing)


def with_packages(kind: str, text: str, *, have: Mapping[str, str], more: Sequence[tuple[str, str]]) -> str:
    """Return a `requirements.txt` with the source's packages in the versions of `have`, and `more`.

    `have` maps canonical names to versions. `more` takes precedence over the source.
    """
    if kind == SourceKind.FOLDER:
        # The list of a folder is its content.
        kind, text = SourceKind.REQUIREMENTS, "".join(f"{name}\n" for name in have)
    pinned = {canonicalize_name(name): version for name, version in more}
    named: set[str] = set()
    lines = []
    for line in lines_in(kind, text):
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            lines.append(line)  # VS Code, from another registry
            continue
        name = canonicalize_name(wanted.name)
        version = pinned.get(name) or have.get(name)
        if name in named:
            continue
        named.add(name)
        extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
        marker = f"; {wanted.marker}" if wanted.marker is not None and name not in pinned else ""
        lines.append(f"{wanted.name}{extras}=={version}{marker}" if version else line)
    lines += [f"{name}=={version}" for name, version in more if canonicalize_name(name) not in named]
    return "".join(f"{line}\n" for line in lines)


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines without comments, each with the number of its first line."""
    gathered: list[str] = []
    first = 0
    for number, physical in enumerate(text.split("\n"), start=1):
        first = first or number
        gathered.append(physical)
        if physical.rstrip().endswith("\\"):
            continue
        for line in logical_lines("\n".join(gathered)):
            yield first, line
        gathered, first = [], 0
    for line in logical_lines("\n".join(gathered)):
        yield first, line


def _problem_of(line: str, *, lock: bool) -> str | None:
    """Return the invalid part of a line, or None."""
    tokens = line.split()
    bare = " ".join(token for token in tokens if not token.startswith("--hash=")) if lock else line
    if NPM_LINE.fullmatch(line):
        return None
    if not bare or bare.startswith("-"):
        return line
    try:
        requirement = Requirement(bare)
    except InvalidRequirement:
        return line
    return line if requirement.url else None


def _check_pyproject(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _source_error("source", _unreadable_reason(str(error))) from error
    project = document.get("project")
    wanted = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(wanted, list) or not all(isinstance(requirement, str) for requirement in wanted):
        raise _source_error("source", _unreadable_reason("[project] dependencies"))
    if not wanted:
        raise _source_error("source", Reason(EnvironmentCode.NOTHING_ASKED_FOR))
    for requirement in wanted:
        if _problem_of(requirement, lock=False) is not None:
            raise _source_error("source", _unreadable_reason(requirement))
    # Package sources of any tool are configured by the site.
    tools = document.get("tool")
    uv = tools.get("uv") if isinstance(tools, dict) else None
    if uv:
        raise _source_error("source", _unreadable_reason("[tool.uv]"))


def _dependencies(text: str) -> list[str]:
    try:
        project = tomllib.loads(text).get("project", {})
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    wanted = project.get("dependencies", []) if isinstance(project, dict) else []
    return (
        [requirement for requirement in wanted if isinstance(requirement, str)]
        if isinstance(wanted, list)
        else []
    )


def _unreadable_reason(problem: str) -> Reason:
    return Reason(EnvironmentCode.PYPROJECT_NOT_READ, {"problem": problem.rstrip(".")[:MAX_SHOWN]})


def _source_error(field: str, *reasons: Reason) -> InvalidInput:
    return InvalidInput(Reason(EnvironmentCode.NOT_VALID), errors={field: list(reasons)})
