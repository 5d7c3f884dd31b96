"""Template filters for amounts of resources."""

from __future__ import annotations

from django import template

from portal.common.formatting import format_amount, format_input, format_resource_amount

register = template.Library()
register.simple_tag(format_amount)
register.simple_tag(format_input)
register.simple_tag(format_resource_amount)
