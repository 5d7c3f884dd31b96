"""`code` of problem documents: the kind of error, for programs. Stable once released.

Other refusals use the code of their reason (`codes` of its package).
"""

from __future__ import annotations

from enum import StrEnum


class ProblemCode(StrEnum):
    """Kinds of errors, grouped by HTTP status."""

    # 400
    INVALID = "invalid"
    BAD_REQUEST = "bad_request"
    PARSE_ERROR = "parse_error"
    # 401
    NOT_AUTHENTICATED = "not_authenticated"
    AUTHENTICATION_FAILED = "authentication_failed"
    # 403
    PERMISSION_DENIED = "permission_denied"
    NOT_ALLOWED = "not_allowed"
    REAUTHENTICATION_REQUIRED = "reauthentication_required"
    MFA_REQUIRED = "mfa_required"
    # 404, 405, 406
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_ACCEPTABLE = "not_acceptable"
    # 409
    CONFLICT = "conflict"
    NEEDS_APPROVAL = "needs_approval"
    ALREADY_IN_TEAM = "already_in_team"
    ALREADY_SET = "already_set"
    ASKED_ALREADY = "asked_already"
    ASK_TO_JOIN_LATER = "ask_to_join_later"
    AT_LONGEST_LIFETIME = "at_longest_lifetime"
    BOOKED_BEFORE = "booked_before"
    CHANNEL_DISABLED = "channel_disabled"
    CHECK_UNDER_WAY = "check_under_way"
    COHORT_IN_USE = "cohort_in_use"
    CURATED_ENVIRONMENT_KEPT = "curated_environment_kept"
    DECIDED_ALREADY = "decided_already"
    DEVICE_IN_USE = "device_in_use"
    ENDS_BY_ITSELF = "ends_by_itself"
    ENVIRONMENT_IN_USE = "environment_in_use"
    ENVIRONMENT_NOT_INSTALLED = "environment_not_installed"
    ENVIRONMENT_NOT_READY = "environment_not_ready"
    GONE = "gone"
    HAS_NO_END = "has_no_end"
    HAS_OWNER = "has_owner"
    HAS_WORKSPACES = "has_workspaces"
    HOURS_SPENT = "hours_spent"
    INSTALLED_ON_NODES = "installed_on_nodes"
    IN_USE = "in_use"
    LAST_ADMINISTRATOR = "last_administrator"
    LINK_NOT_CHECKABLE = "link_not_checkable"
    LINK_TAKEN = "link_taken"
    NAME_TAKEN = "name_taken"
    NEEDS_NO_APPROVAL = "needs_no_approval"
    NOTHING_INSTALLED = "nothing_installed"
    NOT_A_MEMBER = "not_a_member"
    NODE_NOT_CHECKABLE = "node_not_checkable"
    NOT_RETIRED = "not_retired"
    NO_BUILD_TO_CANCEL = "no_build_to_cancel"
    ON_ITS_WAY = "on_its_way"
    POLICY_TAKEN = "policy_taken"
    SIMULATED = "simulated"
    SLUG_TAKEN = "slug_taken"
    TESTED_IN_A_BROWSER = "tested_in_a_browser"
    TOO_MANY_CHANNELS = "too_many_channels"
    TOO_MANY_ENVIRONMENTS = "too_many_environments"
    TOO_MANY_SECRETS = "too_many_secrets"
    TOO_MANY_WEBHOOKS = "too_many_webhooks"
    USER_DEACTIVATED = "user_deactivated"
    VERSION_NOT_READY = "version_not_ready"
    WEBHOOK_DISABLED = "webhook_disabled"
    WORKSPACE_SIMULATED = "workspace_simulated"
    # 412
    PRECONDITION_FAILED = "precondition_failed"
    CHANGED_MEANWHILE = "changed_meanwhile"
    # 413, 415, 421, 422
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    MISDIRECTED = "misdirected"
    IMPOSSIBLE = "impossible"
    # 429
    THROTTLED = "throttled"
    TOO_MANY = "too_many"
    TOO_MANY_JOIN_REQUESTS = "too_many_join_requests"
    TOO_MANY_STREAMS = "too_many_streams"
    # 500, 503
    ERROR = "error"
    INTERNAL_ERROR = "internal_error"
    UNAVAILABLE = "unavailable"
