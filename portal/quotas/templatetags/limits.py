"""Numbers of resources in people's units."""

from __future__ import annotations

from django import template

from portal.quotas import resources

register = template.Library()


@register.simple_tag
def spoken(resource: str, amount: int) -> str:
    """The number with its unit, without the resource's name: "64 GiB"."""
    return resources.spoken(resource, amount)
