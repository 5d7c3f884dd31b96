"""A virtual environment with a wheel and exactly its dependencies, created without a package index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SHEBANG = re.compile(rb"^#![^\n]*python[^\n]*")


def make(folder: Path, wheel: Path, extras: Iterable[str] = ()) -> Path:
    """Create it in `folder`: the wheel by pip, its dependencies copied from the tests' environment.

    Returns the folder of programs. Packages outside the metadata's dependency tree are missing.
    """
    site = with_wheel_alone(folder, wheel)
    [root] = [package for package in distributions(path=[str(site)]) if package.name == "berth"]
    for package in needed(root, extras).values():
        _install(package, site, folder / "bin")
    return folder / "bin"


def with_wheel_alone(folder: Path, wheel: Path) -> Path:
    """Create an environment in `folder` with only the wheel. Returns its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    subprocess.run(
        [sys.executable, "-m", "pip", "-q", "--python", folder / "bin" / "python", "install",
         "--no-deps", "--no-index", wheel],
        check=True, timeout=300,
    )  # fmt: skip
    return next(folder.glob("lib/python3.*/site-packages"))


def license_of(wheel: Path) -> tuple[str | None, str]:
    """The SPDX expression in a wheel's metadata, and the text of its license file."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        (text,) = (
            name for name in files.namelist() if re.fullmatch(r"[^/]+\.dist-info/licenses/LICENSE", name)
        )
        return message_from_bytes(files.read(metadata))["License-Expression"], files.read(text).decode()


def needed(root: Distribution, extras: Iterable[str]) -> dict[str, Distribution]:
    """The transitive dependencies of `root` with these extras, by name."""
    distributions_by_name: dict[str, Distribution] = {}
    done: set[tuple[str, str]] = set()
    ahead = [(root, extra) for extra in ("", *extras)]
    while ahead:
        package, extra = ahead.pop()
        for text in package.requires or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            distributions_by_name[name] = distribution(requirement.name)
            for extra_name in ("", *requirement.extras):
                if (name, extra_name) not in done:
                    done.add((name, extra_name))
                    ahead.append((distributions_by_name[name], extra_name))
    return distributions_by_name


def _install(package: Distribution, site: Path, programs: Path) -> None:
    for file in package.files or ():
        source = Path(str(package.locate_file(file))).resolve()
        if not source.is_file() or source.suffix == ".pyc":
            continue
        place = Path(os.path.normpath(site / file))
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.parent == programs and SHEBANG.match(written := source.read_bytes()):
            place.write_bytes(SHEBANG.sub(f"#!{programs / 'python'}".encode(), written, count=1))
            place.chmod(0o755)
            continue
        try:
            os.link(source, place)
        except OSError:
            shutil.copy2(source, place)
