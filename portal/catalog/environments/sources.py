"""Parses and validates the sources of environments before they reach a node.

Accepts only names and versions from the package index, and VS Code from the npm registry. Options, URLs and
files are rejected: they would make a node fetch from elsewhere, or read its files.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from portal.catalog.environments import conda, source_lines, source_text
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import DEFAULT_PYTHON, PYTHONS, SourceKind
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from provisioning.environment_messages import MAX_LOCK, MAX_SOURCE
from provisioning.environments.content import NPM_LINE, logical_lines
from provisioning.environments.folders import is_plain

NOTEBOOK_PACKAGES = ("jupyterlab", "marimo")
"""Packages for templates that start notebooks."""
NOTEBOOK_PROGRAMS = frozenset({"jupyter-lab", "marimo"})
"""Programs of these packages: their templates require an environment that includes them."""
MAX_SHOWN = 80
MAX_PROBLEMS = 10
_SPACED_HASH = re.compile(r"--hash[ \t]+(?=sha)")


def own_python() -> str:
    """Return the portal's own Python version if supported, because nodes most likely have it."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    return own if own in PYTHONS else DEFAULT_PYTHON


def python_of(text: str) -> str:
    """Return the text as a supported Python version. Raises `InvalidInput`."""
    if text not in PYTHONS:
        params = {"known": list(PYTHONS)}
        raise _source_error("python", Reason(EnvironmentCode.BAD_PYTHON, params))
    return text


def validate_source(kind: str, text: str, python: str = "") -> tuple[SourceKind, str]:
    """Return the source in stored form. Raises `InvalidInput`, also if it needs another Python.

    A list with hashes in every line is stored as a lock, any other as a requirements file. An
    `environment.yml` is translated.
    """
    if kind not in SourceKind.values:
        raise _source_error(
            "source_kind", Reason(CommonCode.CHOOSE_ONE_OF, {"known": list(SourceKind.values)})
        )
    chosen = SourceKind(kind)
    if chosen == SourceKind.FOLDER:
        return chosen, _folder(text)
    text = source_text.normalize_text(strip_nul(text)).strip() + "\n"
    has_hashes = chosen != SourceKind.PYPROJECT and "--hash" in text
    _check_length(text, MAX_LOCK if has_hashes else MAX_SOURCE)
    if chosen == SourceKind.PYPROJECT:
        _check_pyproject(text)
        return chosen, text
    if conda.is_environment_file(text):
        _check_length(text, conda.MAX_LENGTH)
        chosen, text = SourceKind.REQUIREMENTS, _translated(text, python)
    else:
        text = _SPACED_HASH.sub("--hash=", "\n".join(text.splitlines()) + "\n")
    problems = []
    count = hashed = 0
    for number, line in _numbered_lines(text):
        count += 1
        hashed += "--hash" in line
        if (problem := source_lines.problem_of(line, number)) is not None:
            problems.append(problem)
    if problems:
        raise _source_error("source", *problems[:MAX_PROBLEMS])
    if not count:
        code = EnvironmentCode.LOCK_EMPTY if chosen == SourceKind.LOCK else EnvironmentCode.NOTHING_ASKED_FOR
        raise _source_error("source", Reason(code))
    if hashed == count:
        return SourceKind.LOCK, text
    _check_length(text, MAX_SOURCE)
    return SourceKind.REQUIREMENTS if hashed or chosen == SourceKind.LOCK else chosen, text


def required_python(kind: str, text: str) -> str:
    """Return the Python version that an `environment.yml` requires; empty if any, and for other sources."""
    text = source_text.normalize_text(strip_nul(text))
    if kind in (SourceKind.FOLDER, SourceKind.PYPROJECT) or not conda.is_environment_file(text):
        return ""
    return (
        _python_for(conda.translate_conda_file(text).python) if len(text.encode()) < conda.MAX_LENGTH else ""
    )


def _python_for(specifiers: SpecifierSet) -> str:
    """Return a supported Python version that fits, preferably the portal's own; empty if none or all fit."""
    if not specifiers:
        return ""
    return next((python for python in (own_python(), *reversed(PYTHONS)) if _fits(python, specifiers)), "")


def _fits(python: str, specifiers: SpecifierSet) -> bool:
    """Return whether a patch release of this Python fits."""
    return any(specifiers.contains(f"{python}.{patch}") for patch in (0, 99))


def _translated(text: str, python: str) -> str:
    """Return the requirements of an `environment.yml`. Raises `InvalidInput` with all problems by line."""
    file = conda.translate_conda_file(text)
    if file.problems:
        raise _source_error("source", *file.problems[:MAX_PROBLEMS])
    python = python or _python_for(file.python) or own_python()
    if not _fits(python, file.python):
        params = {"wanted": str(file.python)[:MAX_SHOWN], "python": python}
        raise _source_error("source", Reason(EnvironmentCode.PYTHON_DIFFERS, params))
    problems = []
    for number, line in enumerate(file.lines, start=1):
        if line and (problem := source_lines.problem_of(line, number)) is not None:
            problems.append(problem)
    if problems:
        raise _source_error("source", *problems[:MAX_PROBLEMS])
    return "".join(f"{line}\n" for line in file.lines if line)


def _check_length(text: str, limit: int) -> None:
    if len(text.encode()) > limit - 1024:
        raise _source_error("source", Reason(EnvironmentCode.SOURCE_TOO_LONG, {"limit": limit // 1024 - 1}))


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


def package_names(kind: str, text: str) -> list[str]:
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
    """Return the requirements from the package index in order, without invalid and npm lines."""
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
    names = package_names(kind, source_to_build(kind, text, notebook=notebook))
    return frozenset(PROGRAMS[name] for name in map(str.lower, names) if name in PROGRAMS)


def source_to_build(kind: str, text: str, *, notebook: bool) -> str:
    """Return the source to build, with the notebook packages added if requested and possible."""
    if not notebook or kind not in (SourceKind.PACKAGES, SourceKind.REQUIREMENTS):
        return text
    present = {name.lower() for name in package_names(kind, text)}
    missing = [name for name in NOTEBOOK_PACKAGES if name not in present]
    return text.rstrip("\n") + "\n" + "".join(f"{name}\n" for name in missing)


def pinned_requirements(
    kind: str, text: str, *, have: Mapping[str, str], more: Sequence[tuple[str, str]]
) -> str:
    """Return a `requirements.txt` with the source's packages at the versions in `have`, and with `more`.

    `have` maps canonical names to versions. `more` takes precedence over the source.
    """
    if kind == SourceKind.FOLDER:
        # A folder has no list: use its contents.
        kind, text = SourceKind.REQUIREMENTS, "".join(f"{name}\n" for name in have)
    pinned = {canonicalize_name(name): version for name, version in more}
    listed_names: set[str] = set()
    lines = []
    for line in lines_in(kind, text):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            lines.append(line)  # VS Code, from another registry
            continue
        name = canonicalize_name(requirement.name)
        version = pinned.get(name) or have.get(name)
        if name in listed_names:
            continue
        listed_names.add(name)
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        marker = f"; {requirement.marker}" if requirement.marker is not None and name not in pinned else ""
        lines.append(f"{requirement.name}{extras}=={version}{marker}" if version else line)
    lines += [f"{name}=={version}" for name, version in more if canonicalize_name(name) not in listed_names]
    return "".join(f"{line}\n" for line in lines)


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines without comments, each with the number of its first line."""
    physical_lines: list[str] = []
    first = 0
    for number, physical in enumerate(text.split("\n"), start=1):
        first = first or number
        physical_lines.append(physical)
        if physical.rstrip().endswith("\\"):
            continue
        for line in logical_lines("\n".join(physical_lines)):
            yield first, line
        physical_lines, first = [], 0
    for line in logical_lines("\n".join(physical_lines)):
        yield first, line


def _check_pyproject(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _source_error("source", _unreadable_reason(str(error))) from error
    project = document.get("project")
    dependencies = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(dependencies, list) or not all(
        isinstance(requirement, str) for requirement in dependencies
    ):
        raise _source_error("source", _unreadable_reason("[project] dependencies"))
    if not dependencies:
        raise _source_error("source", Reason(EnvironmentCode.NOTHING_ASKED_FOR))
    for requirement in dependencies:
        if not _is_requirement(requirement):
            raise _source_error("source", _unreadable_reason(requirement))
    # Only the site configures package sources, for any tool.
    tools = document.get("tool")
    uv = tools.get("uv") if isinstance(tools, dict) else None
    if uv:
        raise _source_error("source", _unreadable_reason("[tool.uv]"))


def _is_requirement(line: str) -> bool:
    return NPM_LINE.fullmatch(line) is not None or source_lines.parse_requirement(line) is not None


def _dependencies(text: str) -> list[str]:
    try:
        project = tomllib.loads(text).get("project", {})
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    dependencies = project.get("dependencies", []) if isinstance(project, dict) else []
    return (
        [requirement for requirement in dependencies if isinstance(requirement, str)]
        if isinstance(dependencies, list)
        else []
    )


def _unreadable_reason(problem: str) -> Reason:
    return Reason(EnvironmentCode.PYPROJECT_NOT_READ, {"problem": problem.rstrip(".")[:MAX_SHOWN]})


def _source_error(field: str, *reasons: Reason) -> InvalidInput:
    """Return an error whose texts also say what to write instead."""
    errors = {field: [sentence_of(reason) for reason in reasons]}
    return InvalidInput(Reason(EnvironmentCode.NOT_VALID), errors=errors)
