"""Forms of environments. They parse; the rules are in the services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _

from portal.catalog.environments.models import PYTHONS, SourceKind
from portal.catalog.environments.source_text import decoded
from portal.catalog.environments.sources import own_python
from portal.common.completion import CompletionOptions, offer_choices
from portal.people.accounts.models import Team
from provisioning.environment_messages import MAX_LOCK

_PLAIN = {"autocomplete": "off"}


class _Source(forms.Form):
    """Fields of a source: text, or a file whose name determines its kind."""

    source_kind = forms.ChoiceField(
        label=_("Source"), choices=SourceKind.choices, initial=SourceKind.PACKAGES
    )
    source = forms.CharField(
        label=_("Packages"),
        required=False,
        strip=False,
        max_length=MAX_LOCK,
        help_text=_("One per line, such as numpy or pandas>=2.2. Or choose a file below."),
        widget=forms.Textarea(
            attrs={"rows": 10, "spellcheck": "false", "autocapitalize": "none", "class": "mono"}
        ),
    )
    folder = forms.ChoiceField(
        label=_("Folder on the nodes"),
        required=False,
        help_text=_("An existing environment. It is mounted read-only and never changed or removed."),
    )
    file = forms.FileField(
        label=_("File"),
        required=False,
        help_text=_("requirements.txt, pyproject.toml, environment.yml, or a lock. Replaces the list."),
    )
    python = forms.ChoiceField(
        label=_("Python"), choices=[(python, python) for python in PYTHONS], initial=own_python
    )

    def __init__(
        self, *args: Any, folders: Iterable[tuple[str, str]] = (), operates: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        choices = list(folders)
        folder: Any = self.fields["folder"]
        kinds: Any = self.fields["source_kind"]
        if not operates:
            # Only operators can select folders on nodes.
            del self.fields["folder"]
            kinds.choices = [choice for choice in SourceKind.choices if choice[0] != SourceKind.FOLDER]
            return
        folder.choices = [("", _("Choose a folder") if choices else _("No folders available")), *choices]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        upload = cleaned.pop("file", None)
        folder = cleaned.pop("folder", "")
        if cleaned.get("source_kind") == SourceKind.FOLDER:
            cleaned["source"] = folder
            if not folder:
                self.add_error(
                    "folder", _("Choose a folder. Nodes list folders in BERTH_ENVIRONMENT_FOLDERS.")
                )
            return cleaned
        if upload is not None:
            if upload.size > MAX_LOCK:
                self.add_error("file", _("The file is too large."))
            else:
                cleaned["source"] = decoded(upload.read())
                if upload.name.endswith(".toml"):
                    cleaned["source_kind"] = SourceKind.PYPROJECT.value
                elif cleaned.get("source_kind") in (SourceKind.PACKAGES, SourceKind.PYPROJECT):
                    cleaned["source_kind"] = SourceKind.REQUIREMENTS.value
        elif not cleaned.get("source", "").strip() and self.needs_source:
            self.add_error("source", _("Enter at least one package, or choose a file."))
        return cleaned

    needs_source = True


class NewEnvironmentForm(_Source):
    name = forms.CharField(label=_("Name"), max_length=80, widget=forms.TextInput(attrs=_PLAIN))
    description = forms.CharField(
        label=_("Description"), max_length=200, required=False, widget=forms.TextInput(attrs=_PLAIN)
    )
    team = forms.ChoiceField(label=_("Available to"), required=False)
    notebook = forms.BooleanField(label=_("Add JupyterLab and marimo"), required=False, initial=True)
    field_order = ("name", "description", "team", "source_kind", "source", "file", "python", "notebook")

    def __init__(self, *args: Any, teams: Iterable[Team], everybody: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["team"]
        field.choices = [*([("", _("Everyone"))] if everybody else []), *((t.slug, t.name) for t in teams)]


class SourceForm(_Source):
    """Form for the source of a new version of an environment."""


class AboutForm(forms.Form):
    """Form for an environment's name and availability."""

    name = forms.CharField(label=_("Name"), max_length=80, widget=forms.TextInput(attrs=_PLAIN))
    description = forms.CharField(
        label=_("Description"), max_length=200, required=False, widget=forms.TextInput(attrs=_PLAIN)
    )
    enabled = forms.BooleanField(label=_("Available for new workspaces"), required=False)
    deprecated = forms.BooleanField(
        label=_("Deprecated: users should choose another environment"), required=False
    )
    successor = forms.ChoiceField(label=_("Successor"), required=False)

    def __init__(self, *args: Any, successors: CompletionOptions, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        url = reverse_lazy("catalog_pages:complete-environments")
        offer_choices(self, "successor", successors, url=url, none=_("None"))
