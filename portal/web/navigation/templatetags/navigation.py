"""Template tags of the menu."""

from __future__ import annotations

from typing import Any

from django import template

from portal.web.navigation import menu

register = template.Library()


def _view_name(context: dict[str, Any]) -> str:
    match = getattr(context.get("request"), "resolver_match", None)
    return match.view_name if match else ""


@register.simple_tag(takes_context=True)
def menu_groups(context: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the groups of the menu for the user, with at most two queries."""
    user = getattr(context.get("request"), "user", None)
    if user is None or not user.is_authenticated:
        return []
    return menu.with_current(menu.groups_for(user), _view_name(context))


@register.simple_tag(takes_context=True)
def account_pages(context: dict[str, Any]) -> list[tuple[menu.Page, bool]]:
    """Return the pages of the account menu, each with whether it is the current one."""
    name = _view_name(context)
    return [(page, page.is_current(name)) for page in menu.ACCOUNT]
