"""Settings of the portal, all from the environment; docs/operations.md lists the variables."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import environ
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from provisioning.service import database_place
from provisioning.service.environ import FILES, home_folder

env = environ.Env()


def ports(variable: str, default: str) -> range:
    """`first-last`, both included. Raises `ImproperlyConfigured`."""
    first, dash, last = env.str(variable, default=default).partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise ImproperlyConfigured(f"{variable} is a range of ports, such as {default}.")
    found = range(int(first), int(last or first) + 1)
    if not found or not 1024 <= found[0] <= found[-1] <= 65535:
        raise ImproperlyConfigured(f"{variable} lies between 1024 and 65535, the lower port first.")
    return found


BASE_DIR = Path(__file__).resolve().parent.parent
BERTH_HOME = home_folder(os.environ)
BERTH_PORT = env.int("BERTH_PORT", default=8000)
BERTH_WEB_PORT = env.int("BERTH_WEB_PORT", default=BERTH_PORT + 1)
BERTH_GATEWAY_PORT = env.int("BERTH_GATEWAY_PORT", default=BERTH_PORT + 5)
BERTH_REDIS_PORT = env.int("BERTH_REDIS_PORT", default=BERTH_PORT + 2)
BERTH_DOMAIN = env.str("BERTH_DOMAIN", default="localhost")
BERTH_PUBLIC_URL = env.str("BERTH_PUBLIC_URL", default=f"http://{BERTH_DOMAIN}:{BERTH_PORT}").rstrip("/")
BERTH_NODE_NAME = env.str("BERTH_NODE_NAME", default=socket.gethostname())
BERTH_AGENT_URL = env.str("BERTH_AGENT_URL", default=f"http://127.0.0.1:{BERTH_WEB_PORT}")
BERTH_MULTIUSER = env.bool("BERTH_MULTIUSER", default=False)
# How other machines reach this one, a name or an address; empty: none can join. Redis is at the next port.
BERTH_NODES_ADDRESS = env.str("BERTH_NODES_ADDRESS", default="").strip()
BERTH_NODES_PORT = env.int("BERTH_NODES_PORT", default=BERTH_PORT + 7)
# Where the two ends of a check of a link between nodes meet: a port of one of them for each check at a time.
BERTH_CHECK_PORTS = ports("BERTH_CHECK_PORTS", "29400-29431")
BERTH_TLS_DIR = Path(env.str("BERTH_TLS_DIR", default="") or BERTH_HOME / "run" / "tls")


def secret(variable: str, file_name: str) -> str:
    """A secret from the environment, else from the file that `make up` writes."""
    value = env.str(variable, default="")
    if value:
        return value
    path = BERTH_HOME / "secrets" / file_name
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ImproperlyConfigured(
            f"{path} cannot be read ({error.strerror}): make it readable or set {variable}."
        ) from error


DEBUG = env.bool("BERTH_DEBUG", default=False)
SECRET_KEY = secret("BERTH_SECRET_KEY", "secret_key")
if not SECRET_KEY:
    # Commands such as `migrate` or `check` run before `make up` has written the secrets; whatever
    # serves requests refuses to start with this value (portal.common.system_checks).
    SECRET_KEY = "insecure-" + hashlib.sha256(str(BERTH_HOME).encode()).hexdigest()
# A Vault that secrets may be read from when a workspace starts (portal.workspace_secrets.vault): its address,
# how the portal signs in to it (an AppRole, or a file with a token), and below which paths users, teams and
# templates may name what they want.
BERTH_VAULT_ADDR = env.str("BERTH_VAULT_ADDR", default="").strip().rstrip("/")
BERTH_VAULT_NAMESPACE = env.str("BERTH_VAULT_NAMESPACE", default="").strip()
BERTH_VAULT_CA_FILE = env.str("BERTH_VAULT_CA_FILE", default="").strip()
BERTH_VAULT_MOUNT = env.str("BERTH_VAULT_MOUNT", default="secret").strip().strip("/")
BERTH_VAULT_ROLE_ID = env.str("BERTH_VAULT_ROLE_ID", default="").strip()
BERTH_VAULT_SECRET_ID_FILE = env.str("BERTH_VAULT_SECRET_ID_FILE", default="").strip()
BERTH_VAULT_APPROLE_MOUNT = env.str("BERTH_VAULT_APPROLE_MOUNT", default="approle").strip().strip("/")
BERTH_VAULT_TOKEN_FILE = env.str("BERTH_VAULT_TOKEN_FILE", default="").strip()
BERTH_VAULT_USER_PATHS = (env.str("BERTH_VAULT_USER_PATHS", default="") or "berth/users/{user}").split()
BERTH_VAULT_TEAM_PATHS = (env.str("BERTH_VAULT_TEAM_PATHS", default="") or "berth/teams/{team}").split()
BERTH_VAULT_TEMPLATE_PATHS = (
    env.str("BERTH_VAULT_TEMPLATE_PATHS", default="") or "berth/templates/{template}"
).split()
if BERTH_VAULT_ADDR:
    _vault = urlsplit(BERTH_VAULT_ADDR)
    _loopback = _vault.hostname in ("localhost", "127.0.0.1", "::1")
    if not _vault.hostname or not (_vault.scheme == "https" or (_vault.scheme == "http" and _loopback)):
        raise ImproperlyConfigured(
            "BERTH_VAULT_ADDR is not valid: write https://vault.example.org:8200 (http:// for this machine)."
        )
    if bool(BERTH_VAULT_ROLE_ID and BERTH_VAULT_SECRET_ID_FILE) == bool(BERTH_VAULT_TOKEN_FILE):
        raise ImproperlyConfigured(
            "BERTH_VAULT_ADDR needs either BERTH_VAULT_ROLE_ID and BERTH_VAULT_SECRET_ID_FILE, "
            "or BERTH_VAULT_TOKEN_FILE."
        )
# Keys that were the secret key before: what they have signed still counts.
SECRET_KEY_FALLBACKS = env.list("BERTH_SECRET_KEY_FALLBACKS", default=[])
BERTH_GATEWAY_SECRET = secret("BERTH_GATEWAY_SECRET", "gateway_secret")
# Where the gateway process leaves passes for the front door; empty or `none`: nowhere (portal.common.passes).
BERTH_PASSES_DIR = env.str("BERTH_PASSES_DIR", default="")
if BERTH_PASSES_DIR == "none":
    BERTH_PASSES_DIR = ""
# What the control plane signs with; public keys of nodes; nodes that work for pools which are on no node.
BERTH_CONTROL_KEY = secret("BERTH_CONTROL_KEY", "control_key")
BERTH_NODE_KEYS_DIR = BERTH_HOME / "keys" / "nodes"
BERTH_ENGINE_NODES = env.list("BERTH_ENGINE_NODES", default=[BERTH_NODE_NAME])
# Addresses of proxies in front of the front door, and the secret by which one on this machine proves itself.
try:
    BERTH_TRUSTED_PROXIES = tuple(
        ipaddress.ip_network(name.strip(), strict=False)
        for name in env.list("BERTH_TRUSTED_PROXIES", default=[])
        if name.strip()
    )
except ValueError as error:
    raise ImproperlyConfigured(f"BERTH_TRUSTED_PROXIES: {error}. Write addresses or networks.") from error
BERTH_PROXY_SECRET = secret("BERTH_PROXY_SECRET", "proxy_secret")
_redis_password = secret("BERTH_REDIS_PASSWORD", "redis_control")
BERTH_REDIS_URL = env.str(
    "BERTH_REDIS_URL",
    default=(
        f"redis://control:{_redis_password}@127.0.0.1:{BERTH_REDIS_PORT}/0"
        if _redis_password
        else f"redis://127.0.0.1:{BERTH_REDIS_PORT}/0"
    ),
)

_public = urlsplit(BERTH_PUBLIC_URL)
BERTH_PUBLIC_HOST = _public.hostname or "localhost"
BERTH_PUBLIC_ORIGIN = f"{_public.scheme}://{_public.netloc}"
HTTPS = _public.scheme == "https"
ALLOWED_HOSTS = [
    *{_public.hostname or "localhost", BERTH_DOMAIN, "localhost", "127.0.0.1", "[::1]"},
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
    # Without "allauth" itself: its pages have no templates here.
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
    "portal.events",
    "portal.history",
    "portal.accounts",
    "portal.webhooks",
    "portal.identity",
    "portal.channels",
    "portal.service_accounts",
    "portal.join_requests",
    "portal.scim",
    "portal.inventory",
    "portal.machines",
    "portal.environments",
    "portal.catalog",
    "portal.workspace_secrets",
    "portal.repositories",
    "portal.workspaces",
    "portal.quotas",
    "portal.gpu_checks",
    "portal.ledger",
    "portal.reservations",
    "portal.scheduling",
    "portal.reclaim",
    "portal.orphans",
    "portal.event_feed",
    "portal.quota_requests",
    "portal.inbox",
    "portal.site_file",
    "portal.reports",
    "portal.embedded",
    "portal",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "portal.common.middleware.RequestIdMiddleware",
    # Before what answers with files, so that these carry the policy too.
    "portal.common.content_policy.ContentPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "portal.common.middleware.NoStoreMiddleware",
    "portal.common.middleware.StorableMiddleware",
    "portal.common.middleware.RefusalLogMiddleware",
    # All that follows is for browsers: requests of programs with a token leave here for their view.
    "portal.common.token_requests.TokenRequestMiddleware",
    "portal.accounts.session_cookie.SessionCookieMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.accounts.request_limits.RequestLimitMiddleware",
    # Pages are private unless a view says `login_not_required`.
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "portal.common.middleware.PartialsMiddleware",
    "portal.common.middleware.ErrorMiddleware",
    "portal.accounts.mfa.required.RequiredFactorMiddleware",
    "portal.accounts.last_seen.LastSeenMiddleware",
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
            # Every template has words for people, so none has to ask for what translates them.
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
    "default": env.db_url("DATABASE_URL", default=f"sqlite:///{database_place.place(BERTH_HOME)}"),
}
# The web processes' threads keep their connections from one request to the next. A process whose requests
# each have a thread of their own (`portal.asgi`) sets 0.
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

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    "portal.identity.backends.DirectoryBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "portal.accounts.context_words.ContextWordsValidator"},
    {"NAME": "portal.accounts.breached_passwords.BreachedPasswordValidator"},
]
# Passwords that have leaked: a sorted file with the SHA-1 of each, or a service that is asked for a range.
BERTH_BREACHED_PASSWORDS_FILE = env.str("BERTH_BREACHED_PASSWORDS_FILE", default="")
BERTH_BREACHED_PASSWORDS_URL = env.str("BERTH_BREACHED_PASSWORDS_URL", default="").rstrip("/")
LOGIN_URL = "accounts:sign-in"
LOGIN_REDIRECT_URL = "home:home"
LOGOUT_REDIRECT_URL = "accounts:sign-in"
# django-allauth takes whoever has proven who they are through the stages of signing in (docs/adr/0020).
# Its pages, mails and limits are off: those of portal.accounts stand in their place.
ACCOUNT_ADAPTER = "portal.accounts.login_adapter.LoginAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_RATE_LIMITS = False
# How long a password waits for the second factor, in seconds.
ACCOUNT_LOGIN_TIMEOUT = 600
MFA_ADAPTER = "portal.accounts.mfa.library.MfaAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes", "webauthn"]
MFA_TOTP_PERIOD = 30
MFA_TOTP_DIGITS = 6
MFA_TOTP_TOLERANCE = 1
MFA_RECOVERY_CODE_COUNT = 10
MFA_RECOVERY_CODE_DIGITS = 10
# Site roles (administrator, operator, approver, auditor) that may not do without a second factor.
BERTH_MFA_REQUIRED_FOR = frozenset(role.strip() for role in env.list("BERTH_MFA_REQUIRED_FOR", default=[]))
if _unknown := BERTH_MFA_REQUIRED_FOR - {"administrator", "operator", "approver", "auditor"}:
    raise ImproperlyConfigured(
        f"BERTH_MFA_REQUIRED_FOR names {', '.join(sorted(_unknown))}: "
        "write administrator, operator, approver or auditor."
    )
# How long a browser may be trusted for the second factor; 0: not at all.
BERTH_TRUSTED_DEVICE_DAYS = max(0, env.int("BERTH_TRUSTED_DEVICE_DAYS", default=30))
BERTH_DEVICE_COOKIE = "__Host-berth-device" if HTTPS else "berth-device"
# After so many minutes dangerous acts ask again who one is; 0: never.
BERTH_STEP_UP_MINUTES = max(0, env.int("BERTH_STEP_UP_MINUTES", default=15))
# Approving more than this asks as well: whole units by resource, for instance gpu=4,gpu_hours=500.
BERTH_STEP_UP_APPROVALS: dict[str, int] = env("BERTH_STEP_UP_APPROVALS", cast={"value": int}, default={})
# Wrong codes, or passwords typed once more, in a quarter of an hour, by user.
BERTH_CODE_FAILURES = max(1, env.int("BERTH_CODE_FAILURES", default=8))
# Its protocols, of the providers in the file; they end in portal.identity (docs/adr/0021).
SOCIALACCOUNT_ADAPTER = "portal.identity.social.SocialAdapter"
SOCIALACCOUNT_STORE_TOKENS = False
# How long an invitation (and a password link that an administrator makes) works, and one that is asked for.
BERTH_INVITATION_HOURS = env.int("BERTH_INVITATION_HOURS", default=72)
BERTH_FORGOTTEN_HOURS = env.int("BERTH_FORGOTTEN_HOURS", default=1)
# Sign-in by the organisation's providers: a TOML file, or one OpenID Connect provider by variables
# (docs/sign-in.md). The secret itself is read when it is used.
BERTH_SIGN_IN_PROVIDERS = env.str("BERTH_SIGN_IN_PROVIDERS", default="")
BERTH_OIDC = {
    name: "set" if name.endswith("_SECRET") else value
    for name, value in env.ENVIRON.items()
    if name.startswith("BERTH_OIDC_") and value
}
# Issuers of OpenID Connect whose tokens are exchanged for those of service accounts, as their rules say; and
# whether one on this very machine may be asked without TLS, which is for tests.
BERTH_TOKEN_EXCHANGE_ISSUERS = env.list("BERTH_TOKEN_EXCHANGE_ISSUERS", default=[])
BERTH_TOKEN_EXCHANGE_LOOPBACK = env.bool("BERTH_TOKEN_EXCHANGE_LOOPBACK", default=False)
# No API token works longer than so many days after it was made; 0: as long as it was made for.
BERTH_TOKEN_MAX_DAYS = max(0, env.int("BERTH_TOKEN_MAX_DAYS", default=0))
# Whether people may delete their own accounts: `off` (administrators do it) or `on`.
BERTH_ACCOUNT_DELETION = env.str("BERTH_ACCOUNT_DELETION", default="off").strip().lower()
# Whether everybody who is signed in is shown the teams with their owners, and may ask to join; for how many
# days a request waits, and after how many a refused one may be made again.
BERTH_LIST_TEAMS = env.bool("BERTH_LIST_TEAMS", default=True)
BERTH_JOIN_REQUEST_DAYS = max(1, env.int("BERTH_JOIN_REQUEST_DAYS", default=14))
BERTH_JOIN_AGAIN_DAYS = max(0, env.int("BERTH_JOIN_AGAIN_DAYS", default=7))
# The short name of the team that every new account joins as a member; empty: none.
BERTH_DEFAULT_TEAM = env.str("BERTH_DEFAULT_TEAM", default="")
AXES_FAILURE_LIMIT = env.int("BERTH_SIGN_IN_FAILURES", default=8)
AXES_COOLOFF_TIME = 0.25  # hours
# Failed sign-ins from one address in a quarter of an hour, whatever the names; many may share an address.
BERTH_SIGN_IN_FAILURES_PER_ADDRESS = max(1, env.int("BERTH_SIGN_IN_FAILURES_PER_ADDRESS", default=50))
# And for one name from whatever addresses.
BERTH_SIGN_IN_FAILURES_PER_NAME = max(1, env.int("BERTH_SIGN_IN_FAILURES_PER_NAME", default=30))
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_CALLABLE = "portal.accounts.lockout.locked_out"
AXES_ENABLE_ADMIN = False

# Bad API tokens from one address in a quarter of an hour; beyond that they are answered with 429.
BERTH_TOKEN_FAILURES_PER_ADDRESS = max(1, env.int("BERTH_TOKEN_FAILURES_PER_ADDRESS", default=100))
# Requests in a minute, of a user and of an address without one; starts of workspaces of a user; event streams
# of a user in a process. 0: as many as one likes.
BERTH_REQUESTS_PER_MINUTE = max(0, env.int("BERTH_REQUESTS_PER_MINUTE", default=3000))
BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS = max(0, env.int("BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS", default=1200))
BERTH_STARTS_PER_MINUTE = max(0, env.int("BERTH_STARTS_PER_MINUTE", default=60))
BERTH_STARTS_PER_HOUR = max(0, env.int("BERTH_STARTS_PER_HOUR", default=600))
BERTH_STREAMS_PER_USER = max(0, env.int("BERTH_STREAMS_PER_USER", default=256))
# A session ends after so many hours without use, and after so many in any case.
BERTH_SESSION_IDLE_HOURS = env.float("BERTH_SESSION_IDLE_HOURS", default=72)
BERTH_SESSION_MAX_HOURS = env.float("BERTH_SESSION_MAX_HOURS", default=336)
SESSION_ENGINE = "portal.accounts.session_store"
SESSION_COOKIE_AGE = int(BERTH_SESSION_MAX_HOURS * 3600)
SESSION_COOKIE_NAME = "__Host-berth" if HTTPS else "berth"
CSRF_COOKIE_NAME = "__Host-berth-csrf" if HTTPS else "berth-csrf"
BERTH_THEME_COOKIE = "__Host-berth-theme" if HTTPS else "berth-theme"
MESSAGE_STORAGE = "portal.common.message_storage.MessageStorage"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
# Workspaces are below the portal's name, and it should have that name to itself.
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
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

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.accounts.authentication.TokenAuthentication",
        "portal.accounts.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["portal.accounts.authentication.HasScope"],
    "DEFAULT_THROTTLE_CLASSES": ["portal.accounts.throttles.RequestThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["portal.common.json_output.JsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.common.json_input.JsonParser"],
    # No `?format=`: what is wanted is said by `Accept`.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_PAGINATION_CLASS": "portal.common.pagination.Pages",
    "DEFAULT_FILTER_BACKENDS": ["portal.common.filtering.FilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "portal.openapi.schema.Schema",
    "EXCEPTION_HANDLER": "portal.common.problems.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Berth",
    "DESCRIPTION": "GPU workspaces under quotas. Errors are RFC 9457 problem details.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "portal.openapi.document.complete",
    ],
    "ENUM_NAME_OVERRIDES": {
        "AccountStateEnum": "portal.accounts.models.AccountState",
        "IssuedTokenTypeEnum": "portal.service_accounts.exchange.grant.TOKEN_TYPES",
        "AccountKindEnum": "portal.accounts.models.AccountKind",
        "SecretKindEnum": "portal.workspace_secrets.models.SecretKind",
        "SiteRoleEnum": "portal.accounts.models.SiteRole",
        "JoinStateEnum": "portal.join_requests.models.JoinState",
        "InboxItemKindEnum": "portal.inbox.items.ItemKind",
        "QuotaRequestKindEnum": "portal.quota_requests.models.RequestKind",
        "QuotaRequestStateEnum": "portal.quota_requests.models.RequestState",
        "GpuCheckKindEnum": "portal.gpu_checks.models.CheckKind",
        "GpuCheckLevelEnum": "portal.inventory.models.CheckLevel",
        "GpuCheckCauseEnum": "portal.gpu_checks.models.CheckCause",
        "GpuCheckStateEnum": "portal.gpu_checks.models.RunState",
        "GpuCheckVerdictEnum": "portal.gpu_checks.models.CheckVerdict",
        "ChannelMessageStateEnum": "portal.channels.models.MessageState",
        "WebhookDeliveryStateEnum": "portal.webhooks.models.DeliveryState",
        "ReservationStateEnum": "portal.reservations.models.ReservationState",
        "PlacementCodeEnum": "portal.common.reasons.codes.PlacementCode",
        "EnvironmentVersionStateEnum": "portal.environments.models.VersionState",
        "EnvironmentBuildStateEnum": "portal.environments.models.BuildState",
        "EnvironmentKindEnum": "portal.environments.models.Kind",
        "EnvironmentSourceKindEnum": "portal.environments.models.SourceKind",
    },
}

# E-mail goes out where EMAIL_URL says how: smtp+tls://user:password@host:587. Without it, in the portal only.
_email_url = env.str("EMAIL_URL", default="")
BERTH_MAIL = bool(_email_url)
if _email_url:
    try:
        vars().update(env.email_url_config(_email_url))
    except (KeyError, ValueError, ImproperlyConfigured) as error:
        raise ImproperlyConfigured(
            "EMAIL_URL is not valid: write smtp+tls://user:password@host:587 (or smtp+ssl://, smtp://)."
        ) from error
EMAIL_TIMEOUT = env.int("EMAIL_TIMEOUT_S", default=10)
DEFAULT_FROM_EMAIL = env.str("EMAIL_FROM", default=f"Berth <berth@{_public.hostname or 'localhost'}>")

# What webhooks and channels may reach besides the public internet: networks as 10.1.0.0/16.
BERTH_OUTGOING_ALLOW = env.list("BERTH_OUTGOING_ALLOW", default=[])
try:
    _ = [ipaddress.ip_network(network.strip()) for network in BERTH_OUTGOING_ALLOW]
except ValueError as error:
    raise ImproperlyConfigured(f"BERTH_OUTGOING_ALLOW: {error}. Write networks as 10.1.0.0/16.") from error
# Certificates of authorities to believe in place of the usual ones, in PEM.
BERTH_OUTGOING_CA_FILE = env.str("BERTH_OUTGOING_CA_FILE", default="")
# The services that notices may be sent through, by the schemas of apprise's URLs: none that runs a program,
# reads a file or speaks without TLS.
BERTH_CHANNEL_SCHEMAS = env.list(
    "BERTH_CHANNEL_SCHEMAS",
    default=[
        "slack", "msteams", "workflow", "workflows", "mmosts", "discord", "rockets", "matrixs", "gchat",
        "wxteams", "webex", "zulip", "ntfys", "gotifys", "tgram", "opsgenie", "pagerduty", "pover", "signals",
    ],
)  # fmt: skip
BERTH_WEBHOOK_KEEP_DAYS = max(1, env.int("BERTH_WEBHOOK_KEEP_DAYS", default=30))
BERTH_WEBHOOK_DISABLE_DAYS = max(1, env.int("BERTH_WEBHOOK_DISABLE_DAYS", default=5))

CELERY_BROKER_URL = BERTH_REDIS_URL
CELERY_TASK_DEFAULT_QUEUE = "control"
NODE_LEASE_S = env.int("BERTH_NODE_LEASE_S", default=20)
SWEEP_INTERVAL_S = env.float("BERTH_SWEEP_INTERVAL_S", default=2.0)
INVENTORY_INTERVAL_S = env.int("BERTH_INVENTORY_INTERVAL_S", default=60)
ORPHAN_SWEEP_INTERVAL_S = env.int("BERTH_ORPHAN_SWEEP_INTERVAL_S", default=20)
# What nobody owns: folders are removed after so many hours (0: never), and shown for so many days after.
BERTH_ORPHAN_FOLDER_HOURS = max(0, env.int("BERTH_ORPHAN_FOLDER_HOURS", default=24))
BERTH_ORPHAN_KEEP_DAYS = max(1, env.int("BERTH_ORPHAN_KEEP_DAYS", default=30))
# The queue: whether others may be asked to leave, after how long at the earliest, and with how much notice.
BERTH_PREEMPTION = env.bool("BERTH_PREEMPTION", default=True)
BERTH_MIN_RUN_S = env.int("BERTH_MIN_RUN_S", default=900)
BERTH_PREEMPTION_GRACE_S = env.int("BERTH_PREEMPTION_GRACE_S", default=120)
BERTH_LIFETIME_HOURS = max(0, env.int("BERTH_LIFETIME_HOURS", default=72))
BERTH_MAX_LIFETIME_HOURS = max(0, env.int("BERTH_MAX_LIFETIME_HOURS", default=336))
BERTH_RECLAIM_NOTICE_MINUTES = max(1, env.int("BERTH_RECLAIM_NOTICE_MINUTES", default=30))
BERTH_IDLE_GPU_MINUTES = max(0, env.int("BERTH_IDLE_GPU_MINUTES", default=120))
BERTH_IDLE_MINUTES = max(0, env.int("BERTH_IDLE_MINUTES", default=0))
# In which the prices of flavors and the costs of reports are written.
BERTH_CURRENCY = env.str("BERTH_CURRENCY", default="EUR")
# Of cores and memory, what a workspace keeps at most while its GPUs are released; 0: all that it had.
BERTH_RELEASED_CORES = max(0, env.int("BERTH_RELEASED_CORES", default=4))
BERTH_RELEASED_MEMORY_GIB = max(0, env.int("BERTH_RELEASED_MEMORY_GIB", default=32))
# Running work that is moved: whether preemptible work is moved without an operator, with how much notice at
# least, and how long nobody is moved again.
BERTH_MOVE_AUTOMATICALLY = env.bool("BERTH_MOVE_AUTOMATICALLY", default=False)
BERTH_MOVE_NOTICE_MINUTES = max(1, env.int("BERTH_MOVE_NOTICE_MINUTES", default=10))
BERTH_MOVE_REST_HOURS = max(1, env.int("BERTH_MOVE_REST_HOURS", default=24))
BERTH_LEDGER_TICK_S = env.int("BERTH_LEDGER_TICK_S", default=60)
# A build of an environment may take so many seconds and MiB; what nothing uses is removed after so many days.
BERTH_ENVIRONMENT_BUILD_S = min(86_400, max(60, env.int("BERTH_ENVIRONMENT_BUILD_S", default=3600)))
BERTH_ENVIRONMENT_MAX_MIB = max(64, env.int("BERTH_ENVIRONMENT_MAX_MIB", default=20_480))
BERTH_ENVIRONMENT_KEEP_DAYS = max(0, env.int("BERTH_ENVIRONMENT_KEEP_DAYS", default=30))
# Leaves the curated environment “Data science” out, so that nothing is built after a first start.
BERTH_SKIP_DATA_SCIENCE = env.bool("BERTH_SKIP_DATA_SCIENCE", default=False)
# Whether an environment that comes with Berth is built when somebody first asks for a workspace with it.
BERTH_BUILD_WHEN_ASKED = env.bool("BERTH_BUILD_WHEN_ASKED", default=True)
# Sealed entries of the audit log are deleted after so many days; 0: never.
BERTH_AUDIT_KEEP_DAYS = max(0, env.int("BERTH_AUDIT_KEEP_DAYS", default=0))
# The audit log is sent on, entry by entry: tls://host:6514, tcp://host:514 or udp://host:514; and to a URL.
BERTH_AUDIT_SYSLOG = env.str("BERTH_AUDIT_SYSLOG", default="")
BERTH_AUDIT_WEBHOOK = env.str("BERTH_AUDIT_WEBHOOK", default="")
BERTH_AUDIT_WEBHOOK_SECRET = secret("BERTH_AUDIT_WEBHOOK_SECRET", "audit_webhook_secret")
if BERTH_AUDIT_SYSLOG:
    try:
        _syslog = urlsplit(BERTH_AUDIT_SYSLOG)
        _complete = _syslog.scheme in ("tls", "tcp", "udp") and _syslog.hostname and _syslog.port
    except ValueError:
        _complete = False
    if not _complete:
        raise ImproperlyConfigured(
            "BERTH_AUDIT_SYSLOG is not valid: write tls://host:6514 (or tcp://, udp://)."
        )
if BERTH_AUDIT_WEBHOOK and not (
    BERTH_AUDIT_WEBHOOK.startswith(("https://", "http://"))
    and BERTH_AUDIT_WEBHOOK_SECRET.startswith("whsec_")
):
    raise ImproperlyConfigured("BERTH_AUDIT_WEBHOOK needs a URL, and BERTH_AUDIT_WEBHOOK_SECRET as whsec_….")
BERTH_SHARE_HALF_LIFE_S = env.int("BERTH_SHARE_HALF_LIFE_S", default=86_400)
# How much a home folder may hold, 0 for any amount, and how long one that holds more may be used on.
BERTH_HOME_LIMIT_MIB = env.int("BERTH_HOME_LIMIT_MIB", default=0)
BERTH_HOME_GRACE_S = env.int("BERTH_HOME_GRACE_S", default=600)
if min(BERTH_HOME_LIMIT_MIB, BERTH_HOME_GRACE_S) < 0:
    raise ImproperlyConfigured("BERTH_HOME_LIMIT_MIB and BERTH_HOME_GRACE_S are 0 or more.")
# After how many days without use a home folder is archived and emptied, after how many more in its archive an
# administrator may delete it, 0 for never, and how long before either its user is told.
BERTH_HOME_ARCHIVE_DAYS = max(0, env.int("BERTH_HOME_ARCHIVE_DAYS", default=0))
BERTH_HOME_DELETE_DAYS = max(0, env.int("BERTH_HOME_DELETE_DAYS", default=0))
BERTH_HOME_NOTICE_DAYS = max(1, env.int("BERTH_HOME_NOTICE_DAYS", default=14))
# How many archives of a home folder there may be; together they take no more than a home may hold. 0: none.
BERTH_HOME_ARCHIVES = env.int("BERTH_HOME_ARCHIVES", default=5)
if BERTH_HOME_ARCHIVES < 0:
    raise ImproperlyConfigured("BERTH_HOME_ARCHIVES is 0 or more.")
# How long cloning a repository may take at a start, and a script of dotfiles.
BERTH_CLONE_TIMEOUT_S = env.int("BERTH_CLONE_TIMEOUT_S", default=900)
BERTH_DOTFILES_TIMEOUT_S = env.int("BERTH_DOTFILES_TIMEOUT_S", default=300)
if min(BERTH_CLONE_TIMEOUT_S, BERTH_DOTFILES_TIMEOUT_S) < 1:
    raise ImproperlyConfigured("BERTH_CLONE_TIMEOUT_S and BERTH_DOTFILES_TIMEOUT_S are 1 or more.")
HEARTBEAT_S = env.int("BERTH_HEARTBEAT_S", default=15)
# What devices did, by the minute and by the hour; docs/capacity.md says what that takes.
BERTH_KEEP_MINUTES_DAYS = env.int("BERTH_KEEP_MINUTES_DAYS", default=3)
BERTH_KEEP_HOURS_DAYS = env.int("BERTH_KEEP_HOURS_DAYS", default=400)
# A secret of its own for Prometheus; without it, a token with the scope pools:read is needed.
BERTH_METRICS_TOKEN = secret("BERTH_METRICS_TOKEN", "metrics_token")

LOG_LEVEL = env.str("BERTH_LOG_LEVEL", default="INFO")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"structured": {"()": "portal.common.logs.formatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "structured"}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        "django.request": {"level": "ERROR"},
        # It logs the path, which may be a link that signs in; RefusalLogMiddleware logs the route.
        "django.security.csrf": {"level": "ERROR"},
        "axes": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "fido2": {"level": "WARNING"},
        # A line for every sweep would bury what matters.
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
