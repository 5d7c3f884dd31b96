"""Presets for the form of a new template: documents that fill in its fields, which users can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.catalog.initial_catalog import TEMPLATES

WEB_APP: dict[str, Any] = {
    "description": "",
    "icon": "box",
    # Every node has bash. The program that listens on the port can come from an environment.
    "program": "bash",
    "argv": ["python3", "-m", "http.server", "{port}", "--bind=127.0.0.1", "--directory={home}"],
    "env": {},
    "ready_path": "/",
    "open_path": "/",
    "upstream_auth": "none",
    "activity": "",
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset for a new template. `document` has the values of the form's fields."""

    key: str
    label: str | Promise
    document: dict[str, Any]


def _shipped(slug: str) -> Preset:
    document = next(template for template in TEMPLATES if template["slug"] == slug)
    fields = {name: value for name, value in document.items() if name not in ("slug", "position")}
    return Preset(slug, document["name"], fields)


PRESETS = (_shipped("jupyterlab"), _shipped("vscode"), Preset("web-app", _("Web app on a port"), WEB_APP))


def preset(key: str) -> Preset | None:
    """Return the preset with this key, or `None`."""
    return next((candidate for candidate in PRESETS if candidate.key == key), None)
