"""The kinds of entries in the audit log."""

from __future__ import annotations

from enum import StrEnum


class AuditKind(StrEnum):
    """What an entry tells of: `<subject>.<what happened>`. Stored and sent as its value, so values stay."""

    # Signing in and out: of whom it tells is its target.
    SESSION_SIGNED_IN = "session.signed_in"
    SESSION_SIGN_IN_FAILED = "session.sign_in_failed"
    SESSION_PROVIDER_REFUSED = "session.provider_refused"
    SESSION_LOCKED_OUT = "session.locked_out"
    SESSION_SIGNED_OUT = "session.signed_out"
    SESSION_ENDED = "session.ended"
    SESSION_PROOF_FAILED = "session.proof_failed"
    SESSION_ADDRESS_REFUSED = "session.address_refused"

    # People, what becomes of their accounts, and what they change of their own.
    USER_INVITED = "user.invited"
    USER_JOINED = "user.joined"
    USER_CHANGED = "user.changed"
    USER_DEACTIVATED = "user.deactivated"
    USER_REACTIVATED = "user.reactivated"
    USER_DELETED = "user.deleted"
    USER_HOMES_KEPT = "user.homes_kept"
    USER_HOMES_DELETE_ASKED = "user.homes_delete_asked"
    USER_HOME_DELETED = "user.home_deleted"
    USER_HOME_NOT_DELETED = "user.home_not_deleted"
    USER_HOME_LOST = "user.home_lost"
    USER_HOME_BEGUN_ANEW = "user.home_begun_anew"
    USER_HOME_MOVE_ASKED = "user.home_move_asked"
    USER_HOME_MOVED = "user.home_moved"
    USER_HOME_MOVE_FAILED = "user.home_move_failed"
    USER_HOME_MOVE_CANCELLED = "user.home_move_cancelled"
    USER_HOME_ARCHIVED = "user.home_archived"
    USER_HOME_RESTORE_ASKED = "user.home_restore_asked"
    USER_HOME_RESTORED = "user.home_restored"
    USER_HOME_ARCHIVE_FAILED = "user.home_archive_failed"
    USER_HOME_ARCHIVE_DELETED = "user.home_archive_deleted"
    USER_PASSWORD_CHANGED = "user.password_changed"  # noqa: S105
    USER_PASSWORD_RESET = "user.password_reset"  # noqa: S105
    USER_PASSWORD_FORGOTTEN = "user.password_forgotten"  # noqa: S105
    USER_EMAIL_CHANGED = "user.email_changed"
    USER_MFA_ADDED = "user.mfa_added"
    USER_MFA_REMOVED = "user.mfa_removed"
    USER_MFA_RESET = "user.mfa_reset"
    USER_MFA_CODES_MADE = "user.mfa_codes_made"
    USER_ADOPTED = "user.adopted"
    USER_RELEASED = "user.released"
    USER_LINKED = "user.linked"
    USER_UNLINKED = "user.unlinked"
    USER_RULES_NOT_MET = "user.rules_not_met"
    USER_PROVIDER_TESTED = "user.provider_tested"

    # Groups that an identity provider keeps here.
    SCIM_GROUP_CREATED = "scim.group_created"
    SCIM_GROUP_CHANGED = "scim.group_changed"
    SCIM_GROUP_DELETED = "scim.group_deleted"

    # The audit log itself.
    AUDIT_EXPORTED = "audit.exported"

    # Accounts, teams and tokens.
    ACCOUNT_MAIL_NOTICES = "account.mail_notices"
    ACCOUNT_DOTFILES = "account.dotfiles"
    TEAM_CREATED = "team.created"
    TEAM_MEMBER_SET = "team.member_set"
    TEAM_MEMBER_REMOVED = "team.member_removed"
    TEAM_OWNER_PASSED = "team.owner_passed"
    TEAM_EGRESS_SET = "team.egress_set"
    TEAM_JOIN_ASKED = "team.join_asked"
    TEAM_JOIN_APPROVED = "team.join_approved"
    TEAM_JOIN_REFUSED = "team.join_refused"
    TEAM_JOIN_WITHDRAWN = "team.join_withdrawn"
    TEAM_JOIN_EXPIRED = "team.join_expired"
    TOKEN_CREATED = "token.created"  # noqa: S105
    TOKEN_REVOKED = "token.revoked"  # noqa: S105
    TOKEN_ROTATED = "token.rotated"  # noqa: S105
    TOKEN_EXCHANGED = "token.exchanged"  # noqa: S105
    TOKEN_EXCHANGE_REFUSED = "token.exchange_refused"  # noqa: S105
    TRUST_RULE_CREATED = "trust_rule.created"
    TRUST_RULE_DELETED = "trust_rule.deleted"
    SERVICE_ACCOUNT_CREATED = "service_account.created"
    SERVICE_ACCOUNT_CHANGED = "service_account.changed"

    # Webhooks and channels.
    CHANNEL_CREATED = "channel.created"
    CHANNEL_CHANGED = "channel.changed"
    CHANNEL_DISABLED = "channel.disabled"
    CHANNEL_DELETED = "channel.deleted"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_CHANGED = "webhook.changed"
    WEBHOOK_SECRET_ROTATED = "webhook.secret_rotated"  # noqa: S105
    WEBHOOK_DISABLED = "webhook.disabled"
    WEBHOOK_DELETED = "webhook.deleted"

    # The catalog.
    TEMPLATE_CREATED = "template.created"
    TEMPLATE_CHANGED = "template.changed"
    TEMPLATE_DELETED = "template.deleted"
    RECLAIM_POLICY_CREATED = "reclaim_policy.created"
    RECLAIM_POLICY_CHANGED = "reclaim_policy.changed"
    RECLAIM_POLICY_DELETED = "reclaim_policy.deleted"
    FLAVOR_CREATED = "flavor.created"
    FLAVOR_CHANGED = "flavor.changed"
    FLAVOR_DELETED = "flavor.deleted"

    # Software environments.
    ENVIRONMENT_CREATED = "environment.created"
    ENVIRONMENT_CHANGED = "environment.changed"
    ENVIRONMENT_DELETED = "environment.deleted"
    ENVIRONMENT_VERSION_MADE = "environment.version_made"
    ENVIRONMENT_VERSION_CHOSEN = "environment.version_chosen"
    ENVIRONMENT_BUILD_ASKED = "environment.build_asked"
    ENVIRONMENT_BUILD_CANCELLED = "environment.build_cancelled"
    ENVIRONMENT_BUILT = "environment.built"
    ENVIRONMENT_BUILD_FAILED = "environment.build_failed"

    # Secrets for workspaces.
    SECRET_CREATED = "secret.created"  # noqa: S105
    SECRET_CHANGED = "secret.changed"  # noqa: S105
    SECRET_DELETED = "secret.deleted"  # noqa: S105

    # Pools, nodes and devices.
    POOL_CREATED = "pool.created"
    POOL_CHANGED = "pool.changed"
    POOL_RETIRED = "pool.retired"
    POOL_UNRETIRED = "pool.unretired"
    POOL_DELETED = "pool.deleted"
    POOL_CHECKS_SET = "pool.checks_set"
    POOL_UNKNOWN = "pool.unknown"
    POOL_ONLINE = "pool.online"
    POOL_UNREACHABLE = "pool.unreachable"
    NODE_APPEARED = "node.appeared"
    NODE_ONLINE = "node.online"
    NODE_OFFLINE = "node.offline"
    NODE_CHANGED = "node.changed"
    NODE_ACCELERATORS = "node.accelerators"
    NODE_DRIVER_CHANGED = "node.driver_changed"
    NODE_CORDONED = "node.cordoned"
    NODE_UNCORDONED = "node.uncordoned"
    NODE_DRAINED = "node.drained"
    NODE_HOMES_MOVE_ASKED = "node.homes_move_asked"
    NODE_HOMES_MOVE_CANCELLED = "node.homes_move_cancelled"
    NODE_HOMES_MOVED = "node.homes_moved"
    DEVICE_APPEARED = "device.appeared"
    DEVICE_RETURNED = "device.returned"
    DEVICE_REPLACED = "device.replaced"
    DEVICE_MIG_CHANGED = "device.mig_changed"
    DEVICE_CHANGED = "device.changed"
    DEVICE_ILL = "device.ill"
    DEVICE_WELL = "device.well"
    DEVICE_UNSEEN = "device.unseen"
    DEVICE_DISAPPEARED = "device.disappeared"
    DEVICE_CORDONED = "device.cordoned"
    DEVICE_UNCORDONED = "device.uncordoned"
    DEVICE_DRAINED = "device.drained"

    # Machines that join.
    MACHINE_TOKEN_CREATED = "machine.token_created"  # noqa: S105
    MACHINE_TOKEN_CANCELLED = "machine.token_cancelled"  # noqa: S105
    MACHINE_JOINED = "machine.joined"
    MACHINE_ROTATED = "machine.rotated"
    MACHINE_LEFT = "machine.left"
    MACHINE_REVOKED = "machine.revoked"
    MACHINE_REMOVED = "machine.removed"
    MACHINE_CLONED = "machine.cloned"

    # What nobody owns.
    ORPHAN_REMOVAL_ASKED = "orphan.removal_asked"
    ORPHAN_REMOVED = "orphan.removed"
    ORPHAN_NOT_REMOVED = "orphan.not_removed"

    # GPU checks and scrubs: `device.<kind of run>_<step>`.
    DEVICE_CHECK_ASKED = "device.check_asked"
    DEVICE_CHECK_CANCELLED = "device.check_cancelled"
    DEVICE_CHECK_PASSED = "device.check_passed"
    DEVICE_CHECK_DEGRADED = "device.check_degraded"
    DEVICE_CHECK_FAILED = "device.check_failed"
    DEVICE_CHECK_HUNG = "device.check_hung"
    DEVICE_CHECK_INCONCLUSIVE = "device.check_inconclusive"
    DEVICE_CHECK_LOST = "device.check_lost"
    DEVICE_REPARTITION_ASKED = "device.repartition_asked"
    DEVICE_REPARTITION_PASSED = "device.repartition_passed"
    DEVICE_REPARTITION_FAILED = "device.repartition_failed"
    DEVICE_REPARTITION_LOST = "device.repartition_lost"
    DEVICE_SCRUB_ASKED = "device.scrub_asked"
    DEVICE_SCRUB_CANCELLED = "device.scrub_cancelled"
    DEVICE_SCRUB_PASSED = "device.scrub_passed"
    DEVICE_SCRUB_DEGRADED = "device.scrub_degraded"
    DEVICE_SCRUB_FAILED = "device.scrub_failed"
    DEVICE_SCRUB_HUNG = "device.scrub_hung"
    DEVICE_SCRUB_INCONCLUSIVE = "device.scrub_inconclusive"
    DEVICE_SCRUB_LOST = "device.scrub_lost"

    # Quotas, and requests for them.
    QUOTA_SET = "quota.set"
    QUOTA_REMOVED = "quota.removed"
    QUOTA_SHARE_SET = "quota.share_set"
    QUOTA_COHORT_CREATED = "quota.cohort_created"
    QUOTA_COHORT_CHANGED = "quota.cohort_changed"
    QUOTA_COHORT_DELETED = "quota.cohort_deleted"
    QUOTA_MEMBER_CAP_SET = "quota.member_cap_set"
    QUOTA_MEMBER_CAP_REMOVED = "quota.member_cap_removed"
    QUOTA_SITE_LIMIT_SET = "quota.site_limit_set"
    QUOTA_SITE_LIMIT_REMOVED = "quota.site_limit_removed"
    QUOTA_RATE_SET = "quota.rate_set"
    QUOTA_RATE_REMOVED = "quota.rate_removed"
    QUOTA_REQUEST_ASKED = "quota.request_asked"
    QUOTA_REQUEST_APPROVED = "quota.request_approved"
    QUOTA_REQUEST_DENIED = "quota.request_denied"
    QUOTA_REQUEST_WITHDRAWN = "quota.request_withdrawn"
    QUOTA_GRANT_ENDED = "quota.grant_ended"
    QUOTA_GRANT_REVOKED = "quota.grant_revoked"
    QUOTA_RULE_CREATED = "quota.rule_created"
    QUOTA_RULE_CHANGED = "quota.rule_changed"
    QUOTA_RULE_DELETED = "quota.rule_deleted"
    QUOTA_DELEGATED = "quota.delegated"
    QUOTA_DELEGATION_ENDED = "quota.delegation_ended"

    # GPU-hours.
    LEDGER_OPENED = "ledger.opened"
    LEDGER_CHANGED = "ledger.changed"
    LEDGER_REFILL = "ledger.refill"
    LEDGER_CREDIT = "ledger.credit"
    LEDGER_CLOSED = "ledger.closed"
    LEDGER_WARNED_80 = "ledger.warned_80"
    LEDGER_WARNED_100 = "ledger.warned_100"

    # Reservations.
    RESERVATION_REQUESTED = "reservation.requested"
    RESERVATION_BOOKED = "reservation.booked"
    RESERVATION_DENIED = "reservation.denied"
    RESERVATION_CANCELLED = "reservation.cancelled"
    RESERVATION_CHANGED = "reservation.changed"
    RESERVATION_PERMITTED = "reservation.permitted"
    RESERVATION_PERMISSION_ENDED = "reservation.permission_ended"
    RESERVATION_BEGUN = "reservation.begun"
    RESERVATION_ENDED = "reservation.ended"
    RESERVATION_MISSED = "reservation.missed"

    # Workspaces: what people ask, then the lifecycle's triggers, then the queue.
    WORKSPACE_REQUESTED = "workspace.requested"
    WORKSPACE_STOP_ASKED = "workspace.stop_asked"
    WORKSPACE_DELETE_ASKED = "workspace.delete_asked"
    WORKSPACE_OPENED = "workspace.opened"
    WORKSPACE_NOT_APPROVED = "workspace.not_approved"
    WORKSPACE_PACKAGES_RESET_ASKED = "workspace.packages_reset_asked"
    WORKSPACE_PACKAGES_KEPT = "workspace.packages_kept"
    WORKSPACE_SECRETS_GIVEN = "workspace.secrets_given"
    WORKSPACE_CLONED = "workspace.cloned"
    WORKSPACE_NOT_CLONED = "workspace.not_cloned"
    WORKSPACE_LAUNCHED = "workspace.launched"
    WORKSPACE_UNCHECKED = "workspace.unchecked"
    WORKSPACE_PLACE = "workspace.place"
    WORKSPACE_CANCEL = "workspace.cancel"
    WORKSPACE_READY = "workspace.ready"
    WORKSPACE_NO_CAPACITY = "workspace.no_capacity"
    WORKSPACE_FAIL = "workspace.fail"
    WORKSPACE_STOP = "workspace.stop"
    WORKSPACE_STOPPED = "workspace.stopped"
    WORKSPACE_START = "workspace.start"
    WORKSPACE_LOST = "workspace.lost"
    WORKSPACE_TERMINATE = "workspace.terminate"
    WORKSPACE_GONE = "workspace.gone"
    WORKSPACE_RETRY = "workspace.retry"
    WORKSPACE_EXTENDED = "workspace.extended"
    WORKSPACE_KEPT = "workspace.kept"
    WORKSPACE_RECLAIM_WARNED = "workspace.reclaim_warned"
    WORKSPACE_CLAIMED = "workspace.claimed"
    WORKSPACE_UNCLAIMED = "workspace.unclaimed"
    WORKSPACE_PROMISED = "workspace.promised"
    WORKSPACE_ASKED_TO_LEAVE = "workspace.asked_to_leave"
    WORKSPACE_MAY_STAY = "workspace.may_stay"
    WORKSPACE_CUT_OFF = "workspace.cut_off"
