"""Names clients by their user agents, for lists of sessions and sign-ins."""

from __future__ import annotations

from django.utils.translation import gettext as _

# In this order: Edge and Opera name Chrome as well, and Chrome names Safari.
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
)
# Android also names Linux, and iPhones name Mac OS X.
SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iPadOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)


def client_name(user_agent: str) -> str:
    """Return a short name: “Firefox on Linux” for a browser, “curl/8.5” for a program, else the whole text.

    Clients choose their user agents: the name helps people to recognize them and proves nothing.
    """
    if not user_agent.startswith("Mozilla/"):
        return user_agent.partition(" ")[0]
    browser = next((name for mark, name in BROWSERS if mark in user_agent), "")
    system = next((name for mark, name in SYSTEMS if mark in user_agent), "")
    if not browser or not system:
        return browser or system or user_agent
    return _("%(browser)s on %(system)s") % {"browser": browser, "system": system}
