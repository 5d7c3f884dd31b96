"""The preview next to the form of a template or flavor: its card, and the command of a start."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from portal.catalog.models import Flavor
from portal.common.formatting import format_duration, format_size
from portal.web.catalog.forms import EntryForm, TemplateForm, models_document
from portal.web.catalog.sections import current_values

MAX_COMMAND = 2000
SIZES = (
    "cpu_milli", "memory_mib", "disk_mib", "nodes", "accelerator_count", "accelerator_milli", "mig_profile",
    "within",
)  # fmt: skip
_PLAIN = re.compile(r"[\w@%+=:,./{}-]+")


@dataclass(frozen=True, slots=True)
class FormPreview:
    """The card on the page for new workspaces. `command` and `facts` describe what a start would execute."""

    name: str
    icon: str
    what: str
    environment: str
    command: str
    facts: list[tuple[str, str]]


def form_preview(form: EntryForm) -> FormPreview:
    """Return the preview of a form with its current values, with or without errors."""
    values = current_values(form)
    name = str(values.get("name") or _("No name yet"))
    if not isinstance(form, TemplateForm):
        return FormPreview(name, "", _size(values), "", "", [])
    return FormPreview(
        name=name,
        icon=str(values.get("icon") or ""),
        what=str(values.get("description") or ""),
        environment=_environment(form, values),
        command=_command(values),
        facts=_facts(values),
    )


def _size(values: dict[str, Any]) -> str:
    """Return the size as the card shows it, or an empty string if a part of it is invalid."""
    amounts = {name: values[name] for name in SIZES if values.get(name) not in (None, "")}
    if not {"cpu_milli", "memory_mib", "accelerator_count"} <= amounts.keys():
        return ""
    return format_size(
        Flavor(**amounts, **models_document(values.get("accelerator_models") or [])).as_request()
    )


def _environment(form: TemplateForm, values: dict[str, Any]) -> str:
    slug = values.get("environment") or ""
    choices: Any = getattr(form.fields["environment"], "choices", ())
    return str(dict(choices).get(slug, slug)) if slug else ""


def _command(values: dict[str, Any]) -> str:
    """Return the startup script and the command as shell lines, with placeholders unchanged."""
    argv = values.get("argv")
    arguments = [str(part) for part in argv] if isinstance(argv, list) else []
    line = " ".join(part if _PLAIN.fullmatch(part) else shlex.quote(part) for part in arguments)
    script = str(values.get("startup") or "").rstrip()
    return "\n".join(filter(None, (script, line)))[:MAX_COMMAND]


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    variables = values.get("env")
    timeout = values.get("start_timeout_s")
    facts = [
        (_("Needs"), str(values.get("program") or "")),
        (_("Variables"), ", ".join(variables) if isinstance(variables, dict) else ""),
        (_("Clones"), str(values.get("git_url") or "")),
        (_("Ready when"), _ready_text(str(values.get("ready_path") or ""), timeout)),
        (_("Opens"), str(values.get("open_path") or "")),
    ]
    return [(label, text) for label, text in facts if text]


def _ready_text(path: str, timeout_s: Any) -> str:
    if not path or not isinstance(timeout_s, int):
        return path
    return _("%(path)s answers, within %(time)s") % {"path": path, "time": format_duration(timeout_s)}
