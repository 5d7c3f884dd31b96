"""npm's part of a build, inside its sandbox. Standard library only; Python 3.9 or newer.

Run as `python -I -S npm_inside.py NODE MODE …`, NODE being the folder of a Node.js with npm:

  registry                    prints the URL of the registry that npm is configured with
  look NAME VERSION           prints `locked VERSION INTEGRITY` of a package; VERSION may be a tag
  install TARGET NAME VERSION INTEGRITY
                              installs it to TARGET, and prints npm's output

Install scripts run only for the packages in `NATIVE`, which must be compiled.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

NATIVE = {
    "code-server": (
        ("", ("argon2",)),
        (
            "lib/vscode",
            (
                "@parcel/watcher",
                "@vscode/deviceid",
                "@vscode/fs-copyfile",
                "@vscode/native-watchdog",
                "@vscode/spdlog",
                "@vscode/sqlite3",
                "node-pty",
            ),
        ),
        ("lib/vscode/extensions", ()),
    )
}
"""Folders of a package that have their own shrinkwrap, and the modules in each that are compiled.

kerberos is omitted: it needs system headers and only serves proxies with that authentication.
"""
LINKS = {
    "code-server": (
        ("lib/vscode/bin/remote-cli/code-server", "code-linux.sh"),
        ("lib/vscode/bin/helpers/browser.sh", "browser-linux.sh"),
    )
}


def main() -> int:
    node, mode, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if mode == "registry":
        return npm(node, "config", "get", "registry")
    if mode == "look":
        return look_up(node, *arguments)
    return install(node, Path(arguments[0]), *arguments[1:])


def look_up(node: Path, name: str, version: str) -> int:
    result = run(node, "view", f"{name}@{version or 'latest'}", "version", "dist.integrity", "--json")
    sys.stdout.write(result.stderr)
    try:
        details = json.loads(result.stdout)
        details = details[-1] if isinstance(details, list) else details
        print("locked", details["version"], details["dist.integrity"])
    except (ValueError, KeyError, IndexError, TypeError):
        print(result.stdout)
        return result.returncode or 1
    return result.returncode


def install(node: Path, target: Path, name: str, version: str, integrity: str) -> int:
    code = npm(node, "install", "--prefix", str(target), f"{name}@{version}")
    if code:
        return code
    lock = json.loads((target / "node_modules" / ".package-lock.json").read_text())
    if lock["packages"][f"node_modules/{name}"].get("integrity") != integrity:
        print(f"hash mismatch: {name} {version} does not match the lock file")
        return 1
    package = target / "node_modules" / name
    for folder, modules in NATIVE.get(name, ()):
        inside = package / folder
        if folder and (code := npm(node, "install", "--omit=dev", folder=inside)):
            return code
        native = [
            module for module in modules if any((place / module).exists() for place in modules_of(inside))
        ]
        for module in native:
            print(f"compiling {module}", flush=True)
            if code := npm(
                node, "rebuild", "--ignore-scripts=false", module, folder=inside if folder else target
            ):
                return code
    for link, goal in LINKS.get(name, ()):
        path = package / link
        if path.with_name(goal).exists():
            path.unlink(missing_ok=True)
            path.symlink_to(goal)
    for rubbish in (*target.rglob("obj.target"), *target.rglob("obj")):
        if rubbish.is_dir() and rubbish.parent.name in ("build", "Release"):
            shutil.rmtree(rubbish, ignore_errors=True)
    return 0


def modules_of(folder: Path) -> tuple[Path, ...]:
    """Return the folders that may contain a package's modules: its own, and those beside it."""
    return (folder / "node_modules", *(parent for parent in folder.parents if parent.name == "node_modules"))


def npm(node: Path, *arguments: str, folder: Path | None = None) -> int:
    return subprocess.run(command(node, *arguments), cwd=folder, env=environ(node)).returncode


def run(node: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(node, *arguments), env=environ(node), capture_output=True, text=True)


def command(node: Path, *arguments: str) -> list[str]:
    program = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--loglevel=error",
             "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")  # fmt: skip
    name, *options = arguments
    scripts = [] if any(option.startswith("--ignore-scripts") for option in options) else ["--ignore-scripts"]
    return [str(node / "bin" / "node"), str(program), name, *quiet, *scripts, *options]


def environ(node: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{node / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "npm_config_nodedir": str(node),
        "npm_config_cache": os.path.join(os.environ.get("TMPDIR", "/tmp"), "npm-cache"),  # noqa: PTH118, S108
    }


if __name__ == "__main__":
    raise SystemExit(main())
