"""Form fields that reference one of many objects by slug.

Up to `MAX_OPTIONS` options are shown as a select list. Above that, the field is a text input with
server-side completion. Without JavaScript, the browser suggests the options rendered with the page. Any slug
is accepted; services validate it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

MAX_OPTIONS = 200
"""Maximum length of a select list, and of a list of suggestions."""
LONGEST_SLUG = 81

Option = tuple[str, str | Promise]


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """Options as pairs of slug and name. `many`: there were too many for a select list."""

    options: list[Option]
    many: bool


def truncate_options(options: Iterable[Option]) -> CompletionOptions:
    """Truncate `options` to `MAX_OPTIONS`. Pass at least one more than that if more exist."""
    first_options = list(options)
    return CompletionOptions(first_options[:MAX_OPTIONS], len(first_options) > MAX_OPTIONS)


class CompletedInput(forms.TextInput):
    """Text input for a slug. `url` returns matching options."""

    def __init__(
        self, *, url: Any, options: Sequence[Option] = (), attrs: dict[str, Any] | None = None
    ) -> None:
        self.url, self.options = url, options
        super().__init__(
            {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false", **(attrs or {})}
        )

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        widget_attrs = dict(attrs or {})
        proposed = f"{widget_attrs.get('id', name)}-proposed"
        widget_attrs |= {
            "list": proposed,
            "hx-get": str(self.url),
            "hx-trigger": "input changed delay:200ms",
            "hx-target": f"#{proposed}",
            "hx-swap": "innerHTML",
            "hx-push-url": "false",
            "hx-sync": "this:replace",
        }
        return format_html(
            '{}<datalist id="{}">{}</datalist>',
            super().render(name, value, widget_attrs, renderer),
            proposed,
            options_html(self.options),
        )


def options_html(options: Iterable[Option]) -> SafeString:
    """Return the `<option>` elements of a `datalist`."""
    return format_html_join("", '<option value="{}">{}</option>', options)


def offer_choices(
    form: forms.Form, name: str, among: CompletionOptions, *, url: Any, none: str | Promise
) -> None:
    """Turn a form field into a select list or, with too many options, into a completed text input."""
    field: Any = form.fields[name]
    if not among.many:
        field.choices = [("", none), *among.options]
        return
    hint = _("Enter the slug; suggestions appear as you type. Empty: %(none)s.") % {"none": none}
    form.fields[name] = forms.CharField(
        label=field.label,
        required=field.required,
        max_length=LONGEST_SLUG,
        help_text=" ".join(str(part) for part in (field.help_text, hint) if part),
        widget=CompletedInput(url=url, options=among.options),
    )
