"""Settings of the gateway process (`portal.asgi`), which serves forward-auth and event streams.

Django only handles requests that open a stream. Each briefly uses its own thread, and the thread's database
connection must not outlive it. No page is rendered.
"""

from __future__ import annotations

from portal.settings import *  # noqa: F403
from portal.settings import DATABASES, INSTALLED_APPS

DATABASES["default"]["CONN_MAX_AGE"] = 0
# The process only reads, and change listeners (`portal.wiring`) would load the scheduler into its memory. The
# process has no sign-in either.
INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "portal" and not app.startswith("allauth")]
ROOT_URLCONF = "portal.stream_urls"
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "portal.common.middleware.RequestIdMiddleware",
    "portal.common.content_policy.ContentPolicyMiddleware",
    "portal.common.middleware.NoStoreMiddleware",
    "portal.common.middleware.RefusalLogMiddleware",
    "portal.people.accounts.session_cookie.SessionCookieMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "portal.common.middleware.PlainErrorMiddleware",
]
