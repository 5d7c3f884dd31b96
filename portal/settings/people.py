"""Settings for people: passwords, second factors, sessions, tokens, teams, and rate limits."""

from __future__ import annotations

from portal.settings.checks import check_mail_domains, check_site_roles
from portal.settings.parsing import amounts, env
from portal.settings.site import HTTPS

# Leaked passwords: a sorted file of SHA-1 digests, or a service with range queries.
BERTH_BREACHED_PASSWORDS_FILE = env.str("BERTH_BREACHED_PASSWORDS_FILE", default="")
BERTH_BREACHED_PASSWORDS_URL = env.str("BERTH_BREACHED_PASSWORDS_URL", default="").rstrip("/")
# Site roles (administrator, operator, approver, auditor) that require a second factor.
BERTH_MFA_REQUIRED_FOR = frozenset(role.strip() for role in env.list("BERTH_MFA_REQUIRED_FOR", default=[]))
check_site_roles("BERTH_MFA_REQUIRED_FOR", BERTH_MFA_REQUIRED_FOR)
# How long a browser can be trusted without the second factor; 0: never.
BERTH_TRUSTED_DEVICE_DAYS = max(0, env.int("BERTH_TRUSTED_DEVICE_DAYS", default=30))
BERTH_DEVICE_COOKIE = "__Host-berth-device" if HTTPS else "berth-device"
# Dangerous actions require a new proof of identity after this many minutes; 0: never.
BERTH_STEP_UP_MINUTES = max(0, env.int("BERTH_STEP_UP_MINUTES", default=15))
# Approvals above these amounts also require one: whole units by resource, such as gpu=4,gpu_hours=500.
BERTH_STEP_UP_APPROVALS = amounts("BERTH_STEP_UP_APPROVALS")
# Maximum wrong codes, or wrong passwords at such a proof, per user within 15 minutes.
BERTH_CODE_FAILURES = max(1, env.int("BERTH_CODE_FAILURES", default=8))
# How long links work: in invitations and from administrators, and for password resets.
BERTH_INVITATION_HOURS = env.int("BERTH_INVITATION_HOURS", default=72)
BERTH_FORGOTTEN_HOURS = env.int("BERTH_FORGOTTEN_HOURS", default=1)
# Sign-in providers of the organisation: a TOML file, or variables for one OpenID Connect provider
# (docs/sign-in.md). The secret itself is read when needed.
BERTH_SIGN_IN_PROVIDERS = env.str("BERTH_SIGN_IN_PROVIDERS", default="")
BERTH_OIDC = {
    name: "set" if name.endswith("_SECRET") else value
    for name, value in env.ENVIRON.items()
    if name.startswith("BERTH_OIDC_") and value
}
# OpenID Connect issuers whose tokens can be exchanged for tokens of service accounts, and whether issuers on
# this machine may be used without TLS (for tests).
BERTH_TOKEN_EXCHANGE_ISSUERS = env.list("BERTH_TOKEN_EXCHANGE_ISSUERS", default=[])
BERTH_TOKEN_EXCHANGE_LOOPBACK = env.bool("BERTH_TOKEN_EXCHANGE_LOOPBACK", default=False)
# Maximum lifetime of API tokens in days; 0: no limit.
BERTH_TOKEN_MAX_DAYS = max(0, env.int("BERTH_TOKEN_MAX_DAYS", default=0))
# Whether people may delete their own accounts: `off` (administrators do it) or `on`.
BERTH_ACCOUNT_DELETION = env.str("BERTH_ACCOUNT_DELETION", default="off").strip().lower()
# Whether all users see the teams with their owners and can ask to join, after how many days a join request
# expires, and after how many days a denied request can be repeated.
BERTH_LIST_TEAMS = env.bool("BERTH_LIST_TEAMS", default=True)
BERTH_JOIN_REQUEST_DAYS = max(1, env.int("BERTH_JOIN_REQUEST_DAYS", default=14))
BERTH_JOIN_AGAIN_DAYS = max(0, env.int("BERTH_JOIN_AGAIN_DAYS", default=7))
# The slug of the team that every new account joins as a member. Empty: none.
BERTH_DEFAULT_TEAM = env.str("BERTH_DEFAULT_TEAM", default="")

# E-mail domains for which team owners can create accounts by invitation, which is only sent by e-mail. “*”:
# all. Empty: owners can only add people who have an account.
BERTH_OWNER_INVITATION_DOMAINS = check_mail_domains(
    "BERTH_OWNER_INVITATION_DOMAINS", env.list("BERTH_OWNER_INVITATION_DOMAINS", default=[])
)

# Maximum failed sign-ins within 15 minutes: from one address for any username (many users may share an
# address), and for one username from any address.
BERTH_SIGN_IN_FAILURES_PER_ADDRESS = max(1, env.int("BERTH_SIGN_IN_FAILURES_PER_ADDRESS", default=50))
BERTH_SIGN_IN_FAILURES_PER_NAME = max(1, env.int("BERTH_SIGN_IN_FAILURES_PER_NAME", default=30))
# Maximum invalid API tokens from one address within 15 minutes. Further requests get 429.
BERTH_TOKEN_FAILURES_PER_ADDRESS = max(1, env.int("BERTH_TOKEN_FAILURES_PER_ADDRESS", default=100))
# Limits per user: requests per minute (also per address, without a user), workspace starts, and event streams
# in one process. 0: no limit.
BERTH_REQUESTS_PER_MINUTE = max(0, env.int("BERTH_REQUESTS_PER_MINUTE", default=3000))
BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS = max(0, env.int("BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS", default=1200))
BERTH_STARTS_PER_MINUTE = max(0, env.int("BERTH_STARTS_PER_MINUTE", default=60))
BERTH_STARTS_PER_HOUR = max(0, env.int("BERTH_STARTS_PER_HOUR", default=600))
BERTH_STREAMS_PER_USER = max(0, env.int("BERTH_STREAMS_PER_USER", default=256))

# Hours without use, and total hours, after which a session expires.
BERTH_SESSION_IDLE_HOURS = env.float("BERTH_SESSION_IDLE_HOURS", default=72)
BERTH_SESSION_MAX_HOURS = env.float("BERTH_SESSION_MAX_HOURS", default=336)
BERTH_THEME_COOKIE = "__Host-berth-theme" if HTTPS else "berth-theme"
