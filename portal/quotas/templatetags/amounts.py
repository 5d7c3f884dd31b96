"""Amounts of resources as people say them, and how many requests wait for the reader."""

from __future__ import annotations

from typing import Any

from django import template

from portal.quotas import resources
from portal.quotas.selectors import requests as selectors

register = template.Library()


@register.simple_tag
def counted(resource: str, amount: int) -> str:
    """Number and name: "1.5 × H100"."""
    return resources.counted(resource, amount)


@register.simple_tag(takes_context=True)
def waiting_requests(context: dict[str, Any]) -> int:
    """How many open requests the reader may decide."""
    user = getattr(context.get("request"), "user", None)
    return selectors.open_count(user) if user is not None and user.is_authenticated else 0


@register.simple_tag(takes_context=True)
def decides_requests(context: dict[str, Any]) -> bool:
    """Whether there is anything that the reader may decide."""
    from portal.quotas import deciders

    user = getattr(context.get("request"), "user", None)
    return user is not None and user.is_authenticated and deciders.decides_any(user)


@register.simple_tag
def spoken(resource: str, amount: int) -> str:
    """The number alone: "1.5", "2 GiB", "12 h"."""
    return resources.spoken(resource, amount)
