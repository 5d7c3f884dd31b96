"""Settings for sign-in (Django, django-allauth and django-axes), sessions and their cookies."""

from __future__ import annotations

from portal.settings.parsing import env
from portal.settings.people import BERTH_SESSION_MAX_HOURS
from portal.settings.site import HTTPS

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    "portal.people.identity.backends.DirectoryBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "portal.people.accounts.context_words.ContextWordsValidator"},
    {"NAME": "portal.people.accounts.breached_passwords.BreachedPasswordValidator"},
]
LOGIN_URL = "accounts:sign-in"
LOGIN_REDIRECT_URL = "home:home"
LOGOUT_REDIRECT_URL = "accounts:sign-in"
# django-allauth runs the stages of a sign-in after the proof of identity (docs/adr/0020). Its pages, mails
# and limits are disabled, because portal.people.accounts has its own.
ACCOUNT_ADAPTER = "portal.people.accounts.login_adapter.LoginAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_RATE_LIMITS = False
# Time to enter the second factor after the password, in seconds.
ACCOUNT_LOGIN_TIMEOUT = 600
MFA_ADAPTER = "portal.people.accounts.mfa.library.MfaAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes", "webauthn"]
MFA_TOTP_PERIOD = 30
MFA_TOTP_DIGITS = 6
MFA_TOTP_TOLERANCE = 1
MFA_RECOVERY_CODE_COUNT = 10
MFA_RECOVERY_CODE_DIGITS = 10
# Protocols of the providers in the file. portal.people.identity completes the sign-in (docs/adr/0021).
SOCIALACCOUNT_ADAPTER = "portal.people.identity.social.SocialAdapter"
SOCIALACCOUNT_STORE_TOKENS = False

AXES_FAILURE_LIMIT = env.int("BERTH_SIGN_IN_FAILURES", default=8)
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_CALLABLE = "portal.people.accounts.lockout.locked_out_page"
AXES_ENABLE_ADMIN = False

SESSION_ENGINE = "portal.people.accounts.session_store"
SESSION_COOKIE_AGE = int(BERTH_SESSION_MAX_HOURS * 3600)
SESSION_COOKIE_NAME = "__Host-berth" if HTTPS else "berth"
CSRF_COOKIE_NAME = "__Host-berth-csrf" if HTTPS else "berth-csrf"
MESSAGE_STORAGE = "portal.common.message_storage.MessageStorage"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = True
