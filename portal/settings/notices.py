"""Settings for outgoing messages: e-mail, channels, webhooks, and the audit log."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from portal.settings.checks import check_audit_syslog, check_audit_webhook, networks
from portal.settings.parsing import env, secret
from portal.settings.site import BERTH_PUBLIC_HOST

# EMAIL_URL is the mail server: smtp+tls://user:password@host:587. Without it, notifications are only in the
# portal.
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
DEFAULT_FROM_EMAIL = env.str("EMAIL_FROM", default=f"Berth <berth@{BERTH_PUBLIC_HOST}>")

# Networks, such as 10.1.0.0/16, that webhooks and channels may reach besides the public internet.
BERTH_OUTGOING_ALLOW = env.list("BERTH_OUTGOING_ALLOW", default=[])
networks("BERTH_OUTGOING_ALLOW", BERTH_OUTGOING_ALLOW, strict=True, advice="Write networks as 10.1.0.0/16.")
# Certificates of trusted authorities, in PEM, instead of the default ones.
BERTH_OUTGOING_CA_FILE = env.str("BERTH_OUTGOING_CA_FILE", default="")
# The services that channels may use, as URL schemes of apprise. None of them runs a program, reads a file or
# works without TLS.
BERTH_CHANNEL_SCHEMAS = env.list(
    "BERTH_CHANNEL_SCHEMAS",
    default=[
        "slack", "msteams", "workflow", "workflows", "mmosts", "discord", "rockets", "matrixs", "gchat",
        "wxteams", "webex", "zulip", "ntfys", "gotifys", "tgram", "opsgenie", "pagerduty", "pover", "signals",
    ],
)  # fmt: skip
BERTH_WEBHOOK_KEEP_DAYS = max(1, env.int("BERTH_WEBHOOK_KEEP_DAYS", default=30))
BERTH_WEBHOOK_DISABLE_DAYS = max(1, env.int("BERTH_WEBHOOK_DISABLE_DAYS", default=5))

# Sealed entries of the audit log are deleted after this many days; 0: never.
BERTH_AUDIT_KEEP_DAYS = max(0, env.int("BERTH_AUDIT_KEEP_DAYS", default=0))
# Entries of the audit log are also sent to a syslog server (tls://host:6514, tcp://host:514 or udp://host:514)
# and to a URL.
BERTH_AUDIT_SYSLOG = env.str("BERTH_AUDIT_SYSLOG", default="")
BERTH_AUDIT_WEBHOOK = env.str("BERTH_AUDIT_WEBHOOK", default="")
BERTH_AUDIT_WEBHOOK_SECRET = secret("BERTH_AUDIT_WEBHOOK_SECRET", "audit_webhook_secret")
if BERTH_AUDIT_SYSLOG:
    check_audit_syslog(BERTH_AUDIT_SYSLOG)
if BERTH_AUDIT_WEBHOOK:
    check_audit_webhook(BERTH_AUDIT_WEBHOOK, BERTH_AUDIT_WEBHOOK_SECRET)
