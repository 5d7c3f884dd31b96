"""Version of Berth."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def version() -> str:
    """Return the version of the checkout, or of the installed package."""
    if CHECKOUT.is_file():
        return str(tomllib.loads(CHECKOUT.read_text(encoding="utf-8"))["project"]["version"])
    try:
        return metadata.version("berth")
    except metadata.PackageNotFoundError:
        return metadata.version("berth-cli")
