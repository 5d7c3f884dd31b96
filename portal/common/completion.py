"""Fields that name one of many: a list to choose from, and beyond some hundreds a short name to write.

What is written is completed by the server as somebody writes. Without JavaScript the browser proposes what
the page was sent with, and any other short name is taken just the same: the services say whether it is one.
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

MOST_IN_A_LIST = 200
"""How many a list has to choose from, and how many are proposed for what has been written."""
LONGEST_SLUG = 81

Option = tuple[str, str | Promise]


@dataclass(frozen=True, slots=True)
class Offered:
    """Some of what may be chosen, by short name and name; `many` says that a list would be too long."""

    options: list[Option]
    many: bool


def offered(options: Iterable[Option]) -> Offered:
    """As many as a list has. Give one more than `MOST_IN_A_LIST` where there are more."""
    found = list(options)
    return Offered(found[:MOST_IN_A_LIST], len(found) > MOST_IN_A_LIST)


class CompletedInput(forms.TextInput):
    """A text field for a short name; `url` answers with options for what stands in it."""

    def __init__(
        self, *, url: Any, options: Sequence[Option] = (), attrs: dict[str, Any] | None = None
    ) -> None:
        self.url, self.options = url, options
        super().__init__(
            {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false", **(attrs or {})}
        )

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        shown = dict(attrs or {})
        proposed = f"{shown.get('id', name)}-proposed"
        shown |= {
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
            super().render(name, value, shown, renderer),
            proposed,
            options_html(self.options),
        )


def options_html(options: Iterable[Option]) -> SafeString:
    """What a `datalist` has in it."""
    return format_html_join("", '<option value="{}">{}</option>', options)


def let_choose(form: forms.Form, name: str, among: Offered, *, url: Any, none: str | Promise) -> None:
    """Have a field of the form a list of these, or its short name written where there are too many."""
    field: Any = form.fields[name]
    if not among.many:
        field.choices = [("", none), *among.options]
        return
    hint = _("Its short name; what you write is completed. Empty: %(none)s.") % {"none": none}
    form.fields[name] = forms.CharField(
        label=field.label,
        required=field.required,
        max_length=LONGEST_SLUG,
        help_text=" ".join(str(part) for part in (field.help_text, hint) if part),
        widget=CompletedInput(url=url, options=among.options),
    )
