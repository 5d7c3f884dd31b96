"""Template tag of the completed text field, for pages that render fields by hand."""

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
    """Render the field. `options` are pairs of slug and name; `hint` is the placeholder."""
    attrs = {"id": ident or name, "maxlength": LONGEST_SLUG}
    if described_by:
        attrs["aria-describedby"] = described_by
    if hint:
        attrs["placeholder"] = hint
    return CompletedInput(url=url, options=options).render(name, value, attrs)
