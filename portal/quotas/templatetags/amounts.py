"""Amounts of resources as people say them."""

from __future__ import annotations

from django import template

from portal.quotas import resources

register = template.Library()


@register.simple_tag
def counted(resource: str, amount: int) -> str:
    """Number and name: "1.5 × H100"."""
    return resources.counted(resource, amount)


@register.simple_tag
def spoken(resource: str, amount: int) -> str:
    """The number with its unit, without the resource's name: "1.5", "64 GiB", "12 h"."""
    return resources.spoken(resource, amount)
