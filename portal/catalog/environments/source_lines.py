"""Explains why a line of a package list is rejected, and what to write instead."""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement

from portal.catalog.environments import conda
from portal.catalog.environments.codes import EnvironmentCode
from portal.common.reasons.reason import Reason
from provisioning.environments.content import NPM_LINE

MAX_SHOWN = 80
MAX_HEAD = 1000
"""Number of characters of a line that determine its reason."""
_PASSWORD = re.compile(r"//[^/@\s]*@")
_HASH = re.compile(r"--hash=sha(?:256|384|512):[0-9a-fA-F]{64,128}")
_INDEX = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--no-index")
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_ADDRESS = re.compile(r"(?:(?:git|hg|svn|bzr)\+[a-z+]+|https?|ftp|ssh)://|git@", re.IGNORECASE)
_DIRECT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*@\s*(?P<from>.+)", re.DOTALL)
_PIP_LIST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s+(?P<version>[0-9][0-9A-Za-z.+!-]*)")


def parse_requirement(line: str) -> Requirement | None:
    """Return the requirement in a line without hashes; None if it is not for the package index."""
    try:
        requirement = Requirement(line)
    except (InvalidRequirement, RecursionError):  # parentheses of markers nest without limit
        return None
    return requirement if requirement.url is None else None


def strip_hashes(line: str) -> str:
    """Return the line without valid options `--hash=` at its end."""
    tokens = line.split()
    while tokens and _HASH.fullmatch(tokens[-1]):
        tokens.pop()
    return " ".join(tokens)


def problem_of(line: str, number: int) -> Reason | None:
    """Return why a logical line, with or without hashes, is invalid; None if it is valid."""
    bare = strip_hashes(line)
    if NPM_LINE.fullmatch(line) or parse_requirement(bare) is not None:
        return None
    code, example = _kind_of(bare[:MAX_HEAD])
    text = _PASSWORD.sub("//…@", line)[:MAX_SHOWN]
    return Reason(code, {"line": number, "text": text, **({"example": example} if example else {})})


def _kind_of(line: str) -> tuple[EnvironmentCode, str]:
    """Return why a line is invalid, and what to write instead (may be empty)."""
    if line.startswith("-"):
        return _kind_of_option(line)
    if (direct := _DIRECT.fullmatch(line)) is not None:
        if _ADDRESS.match(direct["from"]):
            return EnvironmentCode.LINE_FROM_ADDRESS, direct["name"]
        return EnvironmentCode.LINE_FROM_FILE, direct["name"]
    if _ADDRESS.match(line):
        return EnvironmentCode.LINE_FROM_ADDRESS, "numpy==2.1.0"
    if line.startswith((".", "/", "~", "file:")) or line.endswith((".whl", ".tar.gz", ".zip")):
        return EnvironmentCode.LINE_FROM_FILE, "numpy==2.1.0"
    head, option, _ = line.partition(" --")
    if option and parse_requirement(head) is not None:
        return EnvironmentCode.LINE_HAS_OPTION, ""
    if (row := _PIP_LIST.fullmatch(line)) is not None:
        return EnvironmentCode.LINE_FOR_ANOTHER_TOOL, f"{row['name']}=={row['version']}"
    if example := conda.pip_form(line):
        return EnvironmentCode.LINE_FOR_ANOTHER_TOOL, example
    return EnvironmentCode.LINE_NOT_VALID, ""


def _kind_of_option(line: str) -> tuple[EnvironmentCode, str]:
    option, *rest = re.split(r"[\s=]", line, maxsplit=1)
    if not option.startswith("--"):
        option = option[:2]  # pip takes `-rfile` as `-r file`
    if option in _INDEX:
        return EnvironmentCode.LINE_SETS_INDEX, ""
    if option in _INCLUDES:
        return EnvironmentCode.LINE_INCLUDES_FILE, ""
    if option in _EDITABLE:
        from_address = bool(rest and _ADDRESS.match(rest[0].strip()))
        code = EnvironmentCode.LINE_FROM_ADDRESS if from_address else EnvironmentCode.LINE_FROM_FILE
        return code, "numpy==2.1.0"
    return EnvironmentCode.LINE_HAS_OPTION, ""
