"""Form field for a slug that follows the name until the user changes it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.common.names import slug_of


class SlugField(forms.CharField):
    """The slug of a new object. If empty, `SlugFromName` derives it from the field `name`."""

    def __init__(self, *, max_length: int) -> None:
        super().__init__(
            label=_("Slug"),
            max_length=max_length,
            required=False,
            help_text=_("Lower-case letters, digits and hyphens. Cannot be changed later."),
            widget=forms.TextInput(
                attrs={
                    "autocomplete": "off",
                    "autocapitalize": "none",
                    "spellcheck": "false",
                    "data-slug-of": "name",
                }
            ),
        )


class SlugFromName(forms.Form):
    """A form with the fields `name` and, when it creates an object, `slug`."""

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        field = self.fields.get("slug")
        if isinstance(field, SlugField) and cleaned.get("slug") == "" and cleaned.get("name"):
            cleaned["slug"] = slug_of(cleaned["name"], field.max_length or 0)
            if not cleaned["slug"]:
                self.add_error("slug", ValidationError(field.error_messages["required"], code="required"))
        return cleaned
