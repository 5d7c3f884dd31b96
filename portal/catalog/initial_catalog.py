"""The initial catalog of a new installation, from the site file next to this module."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

FILE = files("portal.catalog").joinpath("initial_catalog.yaml")
_SITE: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
TEMPLATES: list[dict[str, Any]] = [{"slug": slug, **entry} for slug, entry in _SITE["templates"].items()]
FLAVORS: list[dict[str, Any]] = [{"slug": slug, **entry} for slug, entry in _SITE["flavors"].items()]
