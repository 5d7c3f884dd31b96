"""Builds from `portal/cli` and the version of the surrounding checkout; no copy is kept here."""

import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path("..", "..")

setup(
    version=tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
    packages=["portal.cli", "portal.cli.client"],
    package_dir={"portal.cli": str(ROOT / "portal" / "cli")},
)
