"""The text field of a short name that the server completes, for pages that write their fields themselves."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.safestring import SafeString

from portal.common.completion import LONGEST_SLUG, CompletedInput

register = template.Library()


@register.simple_tag
def completed_input(
    name: str,
    value: str,
    url: str,
    options: Any = (),
    ident: str = "",
    described_by: str = "",
    hint: str = "",
) -> SafeString:
    """`options` are short names and names; `hint` stands in the field while it is empty."""
    attrs = {"id": ident or name, "maxlength": LONGEST_SLUG}
    if described_by:
        attrs["aria-describedby"] = described_by
    if hint:
        attrs["placeholder"] = hint
    return CompletedInput(url=url, options=options).render(name, value, attrs)
