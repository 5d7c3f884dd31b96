"""Template tags and filters for states, icons, times and sizes.

All output is escaped. Nothing here reads the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django import template
from django.contrib.humanize.templatetags.humanize import naturaltime
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from portal.common import etags
from portal.common.formatting import (
    format_cores,
    format_duration,
    format_memory,
    format_moment,
    format_thousandths,
    format_time_left,
)
from portal.common.names import SERVICE_PREFIX
from portal.common.texts import split_sentence
from portal.common.user_agents import client_name

register = template.Library()

ICON_SPRITE = "vendor/tabler-icons-3.51.0/icons.svg"


@dataclass(frozen=True, slots=True)
class StateLook:
    """How a state is displayed: word, icon and colour, always together."""

    word: str
    icon: str
    tone: str


STATES = {
    "pending": StateLook("Queued", "hourglass", "wait"),
    "provisioning": StateLook("Starting", "loader-2", "busy"),
    "running": StateLook("Running", "circle-check", "ok"),
    "stopping": StateLook("Stopping", "loader-2", "busy"),
    "stopped": StateLook("Stopped", "player-pause", ""),
    "terminating": StateLook("Ending", "loader-2", "busy"),
    "terminated": StateLook("Deleted", "circle-off", ""),
    "failed": StateLook("Failed", "alert-circle", "bad"),
}


def look_of(state: str) -> StateLook:
    """Return the look of a workspace state. An unknown state shows its own name."""
    key = str(state).lower()
    return STATES.get(key) or StateLook(key.replace("_", " ").capitalize() or "Unknown", "circle-dashed", "")


@register.simple_tag
def icon(name: str, label: str = "", css: str = "") -> SafeString:
    """Render an icon of the sprite. Without `label` it is decorative and hidden from screen readers."""
    href = f"{static(ICON_SPRITE)}#{name}"
    if label:
        return format_html(
            '<svg class="icon {}" role="img" aria-label="{}"><use href="{}"></use></svg>', css, label, href
        )
    return format_html(
        '<svg class="icon {}" aria-hidden="true" focusable="false"><use href="{}"></use></svg>', css, href
    )


@register.simple_tag
def state_badge(state: str) -> SafeString:
    """Render a workspace state as word, icon and colour."""
    look = look_of(state)
    spin = "spin" if look.icon == "loader-2" else ""
    return format_html('<span class="badge {}">{}{}</span>', look.tone, icon(look.icon, css=spin), look.word)


@register.simple_tag
def badge(text: str, icon_name: str, tone: str = "") -> SafeString:
    """Render any other state as word, icon and colour. Tones: ok, busy, wait, bad, sim, or none."""
    return format_html('<span class="badge {}">{}{}</span>', tone, icon(icon_name), text)


@register.filter
def first_sentence(text: object) -> tuple[str, str]:
    """Return the first sentence of a long text, and the rest; a short text unchanged, and nothing."""
    return split_sentence(str(text))


@register.simple_tag
def table_region(label: str = "", labelledby: str = "", css: str = "") -> SafeString:
    """Return the attributes of the scrollable `div` around a table, which the keyboard can scroll, too.

    Its accessible name is `label`, or the element with the id `labelledby`. `css` adds classes.
    """
    name, value = ("aria-labelledby", labelledby) if labelledby else ("aria-label", label)
    classes = f"table-wrap {css}".strip()
    return format_html('class="{}" tabindex="0" role="region" {}="{}"', classes, name, value)


@register.simple_tag
def account_name(name: str) -> SafeString | str:
    """Return the name of an account or other actor, with a badge for service accounts.

    The reserved prefix identifies service accounts without a query.
    """
    mark = service_badge(name)
    return format_html("{} {}", name, mark) if mark else name


@register.simple_tag
def service_badge(name: str) -> SafeString | str:
    """Return the service account badge if `name` belongs to a service account, else ""."""
    return badge(_("Service account"), "terminal-2") if name.startswith(SERVICE_PREFIX) else ""


@register.simple_tag
def sim_badge(simulated: bool) -> SafeString | str:
    """Return the `simulated` badge for simulated pools and their workspaces, else ""."""
    return format_html('<span class="badge sim">{}simulated</span>', icon("cube")) if simulated else ""


@register.filter
def state_word(state: str) -> str:
    """Return the word for a workspace state."""
    return look_of(state).word


register.filter("mib", format_memory)
register.filter("cores", format_cores)
register.filter("milli", format_thousandths)
register.filter("duration", format_duration)
register.filter("client_name", client_name)


@register.simple_tag
def when(moment: datetime | None, empty: str = "never") -> SafeString | str:
    """Render a time: relative text, absolute on hover and for screen readers.

    berth.js converts both to the user's time zone and locale.
    """
    if moment is None:
        return empty
    utc = moment.astimezone(UTC)
    absolute = format_moment(utc)
    return format_html(
        '<time datetime="{}" title="{}" data-when><span aria-hidden="true">{}</span>'
        '<span class="sr">{}</span></time>',
        utc.isoformat(timespec="seconds"),
        absolute,
        naturaltime(moment),
        absolute,
    )


@register.simple_tag
def exact_time(moment: datetime) -> SafeString:
    """Render an absolute time, relative on hover: for logs, whose entries are compared by their times.

    berth.js converts both to the user's time zone and locale.
    """
    utc = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}" data-exact>{}</time>',
        utc.isoformat(timespec="seconds"),
        naturaltime(moment),
        format_moment(utc),
    )


@register.simple_tag
def time_left(moment: datetime) -> SafeString:
    """Render a countdown to a time, updated in the browser, with the absolute time on hover."""
    utc = moment.astimezone(UTC)
    absolute = format_moment(utc)
    return format_html(
        '<time datetime="{}" title="{}" data-until><span>{}</span><span class="sr"> ({})</span></time>',
        utc.isoformat(timespec="seconds"),
        absolute,
        format_time_left((utc - datetime.now(UTC)).total_seconds()),
        absolute,
    )


@register.simple_tag
def elapsed(since: datetime | None) -> SafeString | str:
    """Render the time since a moment, updated in the browser."""
    if since is None:
        return ""
    utc = since.astimezone(UTC)
    seconds = (datetime.now(UTC) - utc).total_seconds()
    return format_html(
        '<span data-since="{}">{}</span>',
        utc.isoformat(timespec="milliseconds"),
        format_duration(round(seconds)),
    )


@register.simple_tag
def bar(used: int, total: int, label: str = "") -> SafeString:
    """Render a share as a bar. The width is an attribute, because the CSP forbids inline styles."""
    percent = min(100, round(100 * used / total)) if total > 0 else 0
    tone = "full" if percent >= 90 else ""
    if label:
        return format_html(
            '<svg class="bar {}" role="img" aria-label="{}: {} %">'
            '<rect width="{}%" height="100%"></rect></svg>',
            tone,
            label,
            percent,
            percent,
        )
    return format_html(
        '<svg class="bar {}" aria-hidden="true"><rect width="{}%" height="100%"></rect></svg>', tone, percent
    )


@register.simple_tag(takes_context=True)
def here(context: dict[str, Any], *names: str) -> SafeString | str:
    """Return `aria-current` if the current view has one of these names."""
    match = getattr(context.get("request"), "resolver_match", None)
    current = match.view_name if match else ""
    if any(current == name or (name.endswith(":") and current.startswith(name)) for name in names):
        return SafeString('aria-current="page"')
    return ""


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """Return the current query string with changed parameters. An empty value removes its parameter."""
    request = context.get("request")
    params = request.GET.copy() if request is not None else {}
    for name, value in changes.items():
        if value in ("", None):
            params.pop(name, None)
        else:
            params[name] = value
    encoded = params.urlencode() if hasattr(params, "urlencode") else urlencode(params)
    return f"?{encoded}" if encoded else "?"


@register.simple_tag
def form_version(row: Any, *more: object, field: str = etags.FORM_FIELD) -> SafeString:
    """Render the hidden field with the row's version, for optimistic locking."""
    return format_html('<input type="hidden" name="{}" value="{}">', field, etags.version_of(row, *more))
