"""Names of environments: a digest of their contents, equal on both planes."""

from __future__ import annotations

import hashlib
import json
import re

BUILD_RECIPE = 1
"""Increment when the same lock is built differently."""
DIGEST_LENGTH = 32
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")
NPM_PROGRAMS = ("code-server",)
"""Programs from the npm registry that an environment may have: lines `npm:NAME` of its list."""
_VERSION = r"(?P<version>[0-9A-Za-z.+-]+)"
_SHA512 = r" --hash=sha512:(?P<hex>[0-9a-f]{128})"
NPM_LINE = re.compile(rf"npm:(?P<name>{'|'.join(NPM_PROGRAMS)})(?:=={_VERSION}(?:{_SHA512})?)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HASH = re.compile(r"\s--hash[= ](\S+)")
_COMMENT = re.compile(r"(^|\s)#.*", re.DOTALL)


def digest_of(lock: str, python: str) -> str:
    """Return the digest of the environment built from `lock` for the Python `python` (such as `3.12`).

    Independent of comments, blank lines, the order of lines and hashes, and the spelling of names.
    """
    canonical = {"recipe": BUILD_RECIPE, "python": python.strip(), "lock": sorted(requirements_of(lock))}
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def cuda_of(lock: str) -> str:
    """Return the CUDA version of a lock's packages, such as 12.4; empty for none."""
    text = "\n".join(logical_lines(lock)).lower()
    if match := re.search(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+\.\d+)", text, re.M):
        return match[1]
    if match := re.search(r"^(?:torch|jaxlib|cupy)==[^ ;]*\+cu(?:da)?(\d{2})(\d)", text, re.M):
        return f"{match[1]}.{match[2]}"
    if match := re.search(r"^(?:nvidia-[a-z0-9-]+-cu|jax-cuda|cupy-cuda)(\d{2})", text, re.M):
        return match[1]
    return ""


def is_digest(text: str) -> bool:
    """Return whether `text` is a valid digest, and thus safe in a path."""
    return bool(_DIGEST.fullmatch(text))


def requirements_of(lock: str) -> list[str]:
    """Return the logical lines of a lock in order, without comments, each followed by its sorted hashes."""
    return [_normalise(line) for line in logical_lines(lock)]


def logical_lines(text: str) -> list[str]:
    """Return the lines of a requirements file, without comments and with continued lines joined."""
    lines: list[str] = []
    continued = ""
    for physical in text.splitlines():
        line = _COMMENT.sub("", physical).strip()
        if line.endswith("\\"):
            continued += line[:-1] + " "
            continue
        joined = (continued + line).strip()
        continued = ""
        if joined:
            lines.append(joined)
    if continued.strip():
        lines.append(continued.strip())
    return lines


def _normalise(line: str) -> str:
    hashes = sorted(set(_HASH.findall(line)))
    requirement = " ".join(_HASH.sub(" ", line).split())
    if match := _NAME.match(requirement):
        requirement = re.sub(r"[-_.]+", "-", match[0]).lower() + requirement[match.end() :]
    return " ".join((requirement, *(f"--hash={digest}" for digest in hashes)))
