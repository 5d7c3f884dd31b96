"""Django's own settings: apps, middleware, templates, databases, headers, static files, logs."""

from __future__ import annotations

from csp.constants import NONE, SELF

from portal.settings.parsing import env
from portal.settings.site import (
    BASE_DIR,
    BERTH_DOMAIN,
    BERTH_HOME,
    BERTH_PROBE_ORIGIN,
    BERTH_PUBLIC_HOST,
    BERTH_PUBLIC_URL,
    BERTH_REDIS_URL,
    DEBUG,
    HTTPS,
)
from provisioning.service import database_place
from provisioning.service.environ import FILES

ALLOWED_HOSTS = [
    *{BERTH_PUBLIC_HOST, BERTH_DOMAIN, "localhost", "127.0.0.1", "[::1]"},
    *env.list("BERTH_ALLOWED_HOSTS", default=[]),
]
CSRF_TRUSTED_ORIGINS = [BERTH_PUBLIC_URL]
USE_X_FORWARDED_HOST = False
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    # Without "allauth" itself, because its pages have no templates here.
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "axes",
    "csp",
    "django_filters",
    "django_htmx",
    "template_partials",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "portal.common",
    "portal.common.events",
    "portal.common.history",
    "portal.people.accounts",
    "portal.notify.webhooks",
    "portal.people.identity",
    "portal.notify.channels",
    "portal.people.service_accounts",
    "portal.people.join_requests",
    "portal.people.scim",
    "portal.fleet.inventory",
    "portal.fleet.machines",
    "portal.catalog.environments",
    "portal.catalog",
    "portal.fleet.announcements",
    "portal.workspaces.secrets",
    "portal.catalog.repositories",
    "portal.workspaces",
    "portal.quota.limits",
    "portal.gpu_checks",
    "portal.quota.ledger",
    "portal.quota.reservations",
    "portal.scheduling",
    "portal.reclaim",
    "portal.workspaces.orphans",
    "portal.web.event_feed",
    "portal.quota.requests",
    "portal.web.inbox",
    "portal.web.navigation",
    "portal.site_file",
    "portal.reports",
    "portal.embedded",
    "portal",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "portal.common.middleware.RequestIdMiddleware",
    # Before middleware that serves files, so that file responses have the policy too.
    "portal.common.content_policy.ContentPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "portal.common.middleware.NoStoreMiddleware",
    "portal.common.middleware.RejectNulBytesMiddleware",
    "portal.common.middleware.RefusalLogMiddleware",
    # Everything below is for browsers. From here, requests with a token go directly to their view.
    "portal.common.token_requests.TokenRequestMiddleware",
    "portal.people.accounts.session_cookie.SessionCookieMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.people.accounts.request_limits.RequestLimitMiddleware",
    # Pages are private unless a view says `login_not_required`.
    "portal.people.accounts.login_required.PrivatePagesMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "portal.common.middleware.PartialsMiddleware",
    "portal.common.middleware.ErrorMiddleware",
    "portal.people.accounts.mfa.required.RequiredFactorMiddleware",
    "portal.people.accounts.last_seen.LastSeenMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
WSGI_APPLICATION = "portal.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [FILES / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            # Every template has translated texts, so load the library for all of them.
            "builtins": ["django.templatetags.i18n"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.common.context.portal",
            ],
        },
    },
]

DATABASES = {
    "default": env.db_url("DATABASE_URL", default=f"sqlite:///{database_place.database_file(BERTH_HOME)}"),
}
# Threads of the web processes keep their connections between requests. A process with one thread per request
# (`portal.asgi`) sets 0.
DATABASES["default"]["CONN_MAX_AGE"] = env.int("BERTH_DB_CONN_MAX_AGE_S", default=60)
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # Writers queue for the lock at BEGIN instead of failing when they upgrade a read.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # A test database in memory cannot be shared by threads and processes.
    DATABASES["default"]["TEST"] = {"NAME": str(BASE_DIR / "var" / "test" / "test.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
# Workspaces are on subdomains, so the portal should have its domain to itself.
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        # Excludes workspaces themselves, because a script injected into a page could send data to them.
        "connect-src": [SELF, BERTH_PROBE_ORIGIN],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
        "object-src": [NONE],
        "manifest-src": [SELF],
    },
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = BERTH_HOME / "static"
STATICFILES_DIRS = [FILES / "static"]
WHITENOISE_USE_FINDERS = env.bool("BERTH_STATIC_FROM_SOURCE", default=False)
WHITENOISE_AUTOREFRESH = DEBUG
WHITENOISE_ALLOW_ALL_ORIGINS = False
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

CELERY_BROKER_URL = BERTH_REDIS_URL
CELERY_TASK_DEFAULT_QUEUE = "control"

LOG_LEVEL = env.str("BERTH_LOG_LEVEL", default="INFO")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"structured": {"()": "portal.common.logs.formatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "structured"}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        "django.request": {"level": "ERROR"},
        # This logger logs the path, which may be a sign-in link; RefusalLogMiddleware logs the route.
        "django.security.csrf": {"level": "ERROR"},
        "axes": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "fido2": {"level": "WARNING"},
        # A line per sweep would hide relevant lines.
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
