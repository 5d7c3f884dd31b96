"""Every code that a `Reason` may have, one enumeration for each subject; `wording` has its text."""

# ruff: noqa: S105  (codes that name a token are no secrets)
from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """Which rule keeps a request waiting, or refuses it."""

    USER_CAP = "user_cap"
    TEAM_LIMIT = "team_limit"
    COHORT = "cohort"
    SITE_LIMIT = "site_limit"
    LEDGER = "ledger"
    CAPACITY = "capacity"
    BOOKING = "booking"
    PLACEMENT = "placement"
    ORDER = "order"


class PlacementCode(StrEnum):
    """Why a node or device does not take a request."""

    NODE_OFFLINE = "node_offline"
    NODE_CORDONED = "node_cordoned"
    NODE_OVERCOMMITTED = "node_overcommitted"
    NODE_RETIRED = "node_retired"
    POOL_UNREACHABLE = "pool_unreachable"
    POOL_DISABLED = "pool_disabled"
    DEVICE_CORDONED = "device_cordoned"
    DEVICE_UNHEALTHY = "device_unhealthy"
    DEVICE_CHECKING = "device_checking"
    PARENT_UNUSABLE = "parent_unusable"
    LABEL_MISSING = "label_missing"
    HOME_ELSEWHERE = "home_elsewhere"
    FEATURE_MISSING = "feature_missing"
    CUDA_TOO_OLD = "cuda_too_old"
    COMPUTE_CAPABILITY_TOO_LOW = "compute_capability_too_low"
    NODE_LACKS_PROGRAM = "node_lacks_program"
    CPU_SHORT = "cpu_short"
    MEMORY_SHORT = "memory_short"
    DISK_SHORT = "disk_short"
    MODEL_MISSING = "model_missing"
    ONLY_AS_MIG = "only_as_mig"
    DEVICE_MEMORY_SHORT = "device_memory_short"
    DEVICES_SHORT = "devices_short"
    DEVICE_SHARES_SHORT = "device_shares_short"
    BONDED_DEVICES_SHORT = "bonded_devices_short"
    MIG_PROFILE_MISSING = "mig_profile_missing"
    MIG_INSTANCES_SHORT = "mig_instances_short"
    NODES_SHORT = "nodes_short"
    REFUSED_BY_DRIVER = "refused_by_driver"


MAY_PASS = frozenset(
    {PlacementCode.NODE_OFFLINE, PlacementCode.NODE_CORDONED, PlacementCode.POOL_UNREACHABLE}
)
"""Why a node takes nothing now though it may later, by itself or by an operator."""
NOT_SUITED = frozenset(
    {
        PlacementCode.NODE_RETIRED,
        PlacementCode.LABEL_MISSING,
        PlacementCode.HOME_ELSEWHERE,
        PlacementCode.FEATURE_MISSING,
        PlacementCode.CUDA_TOO_OLD,
        PlacementCode.COMPUTE_CAPABILITY_TOO_LOW,
        PlacementCode.NODE_LACKS_PROGRAM,
        PlacementCode.MODEL_MISSING,
        PlacementCode.MIG_PROFILE_MISSING,
    }
)
"""What a node lacks whatever becomes free on it: the reasons of other nodes say more to who waits."""


class AdmissionCode(StrEnum):
    """What would become of a request, where no `Rule` says it."""

    FITS_NOW = "fits_now"
    LOOKED_AT_AGAIN = "looked_at_again"
    NO_ENABLED_POOL = "no_enabled_pool"
    NO_NODE_REPORTED = "no_node_reported"
    NO_NODE_HAS_PROGRAM = "no_node_has_program"
    NO_NODE_HAS_SOFTWARE = "no_node_has_software"
    NO_NODE_LARGE_ENOUGH = "no_node_large_enough"


class WaitBasis(StrEnum):
    """What an expected start rests on, or why none can be expected."""

    ENOUGH_FREE = "enough_free"
    EXPECTED_ENDS = "expected_ends"
    TOO_FAR_AHEAD = "too_far_ahead"
    NO_ROOM_ON_NODES = "no_room_on_nodes"
    LIMIT_MUST_CHANGE = "limit_must_change"


class PreemptionCode(StrEnum):
    """Why a workspace has to make room; the first three as Kueue's `InClusterQueue`, `InCohortReclamation`
    and `InCohortFairSharing`."""

    IN_TEAM = "in_team"
    RECLAIM = "reclaim"
    FAIR_SHARE = "fair_share"
    RESERVATION_BEGUN = "reservation_begun"


class CommonCode(StrEnum):
    """Refusals that any room may make."""

    CHANGED_BY_SOMEBODY = "changed_by_somebody"
    CHOOSE_ONE_OF = "choose_one_of"
    CHOOSE_WHAT_TO_DO = "choose_what_to_do"
    CORRECT_AND_RETRY = "correct_and_retry"
    DRIVER_REPORT = "driver_report"
    FIRST_CHOICE_MISSING = "first_choice_missing"
    HOURS_NOT_UNDERSTOOD = "hours_not_understood"
    NO_SUCH_NOTICE = "no_such_notice"
    UNKNOWN_PARAMETER = "unknown_parameter"
    PAGE_SIZE_INVALID = "page_size_invalid"
    CURSOR_INVALID = "cursor_invalid"
    LINES_INVALID = "lines_invalid"
    SPAN_UNKNOWN = "span_unknown"
    STORAGE_BUSY = "storage_busy"
    STORAGE_FAILS = "storage_fails"
    STORAGE_FULL = "storage_full"
    STORAGE_READ_ONLY = "storage_read_only"
    LAST_EVENT_ID_INVALID = "last_event_id_invalid"
    IDEMPOTENCY_KEY_INVALID = "idempotency_key_invalid"
    VERSION_CHANGED = "version_changed"
    TEAM_MISSING = "team_missing"
    IN_NO_TEAM = "in_no_team"


class EventCode(StrEnum):
    """Refusals about event streams and notices."""

    TOO_MANY_STREAMS = "too_many_streams"


class ExchangeCode(StrEnum):
    """Refusals of token exchanges and of trust rules."""

    ACCOUNT_INACTIVE = "account_inactive"
    ALGORITHM_NOT_ALLOWED = "algorithm_not_allowed"
    AUDIENCE_NEEDED = "audience_needed"
    BAD_SIGNATURE = "bad_signature"
    CLAIMS_NOT_UNDERSTOOD = "claims_not_understood"
    CLAIM_MISSING = "assertion_claim_missing"
    CONDITION_CHECKED_ANYWAY = "condition_checked_anyway"
    CONDITION_CLAIM = "condition_claim"
    CONDITION_LINE = "condition_line"
    CONDITION_MATCH = "condition_match"
    CONDITION_VALUE = "condition_value"
    EXPIRED = "assertion_expired"
    ISSUER_NOT_ALLOWED = "issuer_not_allowed"
    ISSUER_UNREACHABLE = "issuer_unreachable"
    LIFETIME_OUT_OF_RANGE = "lifetime_out_of_range"
    LIVES_TOO_LONG = "lives_too_long"
    NOT_A_JWT = "not_a_jwt"
    NOT_VALID = "assertion_not_valid"
    NOT_YET_VALID = "not_yet_valid"
    NO_IDENTITY = "no_identity"
    NO_RULE_MATCHES = "no_rule_matches"
    NO_SUCH_RULE = "no_such_trust_rule"
    REPLAYED = "replayed"
    RULE_NAMELESS = "rule_nameless"
    SCOPE_NOT_GRANTED = "scope_not_granted"
    SEVERAL_ACCOUNTS = "several_accounts"
    TOKEN_TOO_LONG = "token_too_long"
    TOO_MANY_CONDITIONS = "too_many_conditions"
    TOO_MANY_RULES = "too_many_rules"
    UNKNOWN_KEY = "unknown_key"


class AccountCode(StrEnum):
    """Refusals about people, teams and tokens."""

    ACCOUNT_DELETION_OFF = "account_deletion_off"
    AUDITOR_HOLDS_NO_OTHER_ROLE = "auditor_holds_no_other_role"
    AUDITOR_ONLY_READS = "auditor_only_reads"
    AUDITOR_ONLY_VIEWS = "auditor_only_views"
    AUDITOR_TOKEN_WRITES = "auditor_token_writes"
    AUDITOR_WORKS_IN_TEAMS = "auditor_works_in_teams"
    CHOOSE_A_ROLE = "choose_a_role"
    CHOOSE_SCOPES = "choose_scopes"
    EXPIRY_NOT_IN_FUTURE = "expiry_not_in_future"
    DESCRIPTION_TOO_LONG = "description_too_long"
    EXPIRY_PAST = "expiry_past"
    EXPIRY_TOO_LATE = "expiry_too_late"
    HOMES_CHOICE = "homes_choice"
    IS_SERVICE_ACCOUNT = "is_service_account"
    LAST_ADMINISTRATOR = "last_administrator"
    LAST_OWNER = "last_owner"
    LAST_OWNER_LEAVES = "last_owner_leaves"
    LINK_SPENT = "link_spent"
    MEMBER_HAS_WORKSPACES = "member_has_workspaces"
    NOT_IN_TEAM = "not_in_team"
    NOT_A_MEMBER = "not_a_member"
    NO_SCOPES = "no_scopes"
    NO_SUCH_ROLE = "no_such_role"
    NO_SUCH_SITE_ROLE = "no_such_site_role"
    NO_SUCH_SESSION = "no_such_session"
    NO_SUCH_SERVICE_ACCOUNT = "no_such_service_account"
    NO_SUCH_TEAM = "no_such_team"
    NO_SUCH_TOKEN = "no_such_token"
    NO_SUCH_USER = "no_such_user"
    NOT_INVITED = "not_invited"
    ONLY_ADMINISTRATORS = "only_administrators"
    ONLY_OPERATORS = "only_operators"
    ONLY_TEAM_OWNERS = "only_team_owners"
    SCIM_ALONE = "scim_alone"
    TEAM_NOT_VALID = "team_not_valid"
    OWN_ACCOUNT_BY_TOKEN = "own_account_by_token"
    OVERLAP_OUT_OF_RANGE = "overlap_out_of_range"
    SERVICE_ACCOUNT_SIGNS_IN = "service_account_signs_in"
    TOKEN_ENDED = "token_ended"
    TOKEN_FOR_ANOTHER = "token_for_another"
    TOKEN_OF_ANOTHER = "token_of_another"
    TOKEN_ROTATED = "token_rotated"
    TOO_MANY_SERVICE_ACCOUNTS = "too_many_service_accounts"
    TOKEN_NAMELESS = "token_nameless"
    TOKEN_OUTLIVES = "token_outlives"
    TOKEN_PURPOSE = "token_purpose"
    TOKEN_WIDER = "token_wider"
    UNKNOWN_SCOPES = "unknown_scopes"
    USER_DEACTIVATED = "user_deactivated"
    USER_DELETED = "user_deleted"
    USER_HAS_WORKSPACES = "user_has_workspaces"
    USER_NOT_VALID = "user_not_valid"
    USER_UNKNOWN = "user_unknown"
    VIEWER_ONLY = "viewer_only"
    WORKSPACES_CHOICE = "workspaces_choice"
    WRONG_PASSWORD = "wrong_password"


class WebhookCode(StrEnum):
    """Refusals about webhooks."""

    ADMINISTRATORS_TYPES = "webhook_administrators_types"
    CHOOSE_TYPES = "webhook_choose_types"
    ENDED = "webhook_ended"
    NAMELESS = "webhook_nameless"
    NO_SUCH_DELIVERY = "no_such_delivery"
    NO_SUCH_WEBHOOK = "no_such_webhook"
    NOT_VALID = "webhook_not_valid"
    ON_ITS_WAY = "webhook_on_its_way"
    TOO_MANY = "too_many_webhooks"
    UNKNOWN_TYPES = "webhook_unknown_types"
    URL_CREDENTIALS = "webhook_url_credentials"
    URL_INTERNAL = "webhook_url_internal"
    URL_NONE = "webhook_url_none"
    URL_SCHEME = "webhook_url_scheme"


class MfaCode(StrEnum):
    """Refusals about second factors and proofs of who somebody is."""

    APP_THERE = "app_there"
    CONFIRM_FIRST = "confirm_first"
    LAST_FACTOR = "last_factor"
    NO_APP = "no_app"
    NO_FACTOR = "no_factor"
    NO_SUCH_PASSKEY = "no_such_passkey"
    PASSKEY_COPIED = "passkey_copied"
    PASSKEY_LATE = "passkey_late"
    PASSKEY_NAME = "passkey_name"
    PASSKEY_REFUSED = "passkey_refused"
    SECRET_UNREADABLE = "mfa_secret_unreadable"
    SET_UP_FIRST = "set_up_mfa_first"
    TOO_MANY_PASSKEYS = "too_many_passkeys"
    TOO_MANY_TRIES = "too_many_tries"
    WRONG_CODE = "wrong_code"


class IdentityCode(StrEnum):
    """Refusals about sign-in by a provider."""

    ACCOUNT_DEACTIVATED = "account_deactivated"
    CLAIMS_NOT_VALID = "claims_not_valid"
    CLAIM_MISSING = "claim_missing"
    CLAIM_TOO_LONG = "claim_too_long"
    DIRECTORY_NOBODY = "directory_nobody"
    EMAIL_TAKEN = "email_taken"
    GROUPS_LEFT_OUT = "groups_left_out"
    LAST_OWNER_KEPT = "last_owner_kept"
    LINKED_TO_ANOTHER = "linked_to_another"
    LINK_OF_NOBODY = "link_of_nobody"
    LINK_TAKEN = "link_taken"
    NOT_ALLOWED = "not_allowed_by_rule"
    NO_ACCOUNT = "no_account"
    NO_SUCH_LINK = "no_such_link"
    NO_SUCH_PROVIDER = "no_such_provider"
    PROVIDER_CANCELLED = "provider_cancelled"
    PROVIDER_DOWN = "provider_down"
    PROVIDER_OFF = "provider_off"
    PROVIDER_REFUSED = "provider_refused"
    PROVIDER_WRONG = "provider_wrong"
    ROLES_NOT_LINKED = "roles_not_linked"
    SIGN_IN_ENDED = "sign_in_ended"
    TEAM_NOT_THERE = "team_not_there"
    TEAM_NAME_NOT_VALID = "team_name_not_valid"
    TESTED_IN_A_BROWSER = "tested_in_a_browser"
    TEST_NOT_YOURS = "test_not_yours"
    USERNAME_NOT_MATCHED = "username_not_matched"
    USERNAME_NOT_VALID = "username_not_valid"
    USERNAME_TAKEN = "username_taken"
    USERNAME_TOO_LONG = "username_too_long"


class ChannelCode(StrEnum):
    """Refusals about channels of notices."""

    CHOOSE_KINDS = "channel_choose_kinds"
    ENDED = "channel_ended"
    NAMELESS = "channel_nameless"
    NOT_CHECKED = "channel_not_checked"
    NOT_VALID = "channel_not_valid"
    NO_SUCH_CHANNEL = "no_such_channel"
    ON_ITS_WAY = "channel_on_its_way"
    TOO_MANY = "too_many_channels"
    UNKNOWN_KINDS = "channel_unknown_kinds"
    URL_NONE = "channel_url_none"
    URL_PARAMETER = "channel_url_parameter"
    URL_SERVICE = "channel_url_service"


class JoinCode(StrEnum):
    """Requests to be taken into a team."""

    ALREADY_IN_TEAM = "already_in_team"
    ASK_TO_JOIN_LATER = "ask_to_join_later"
    JOIN_APPROVED_ALREADY = "join_approved_already"
    JOIN_CLOSED_ALREADY = "join_closed_already"
    JOIN_MESSAGE_TOO_LONG = "join_message_too_long"
    JOIN_REFUSED_ALREADY = "join_refused_already"
    NOBODY_JOINS_ALONE = "nobody_joins_alone"
    NO_SUCH_JOIN_REQUEST = "no_such_join_request"
    ONLY_REQUESTER_WITHDRAWS = "only_requester_withdraws"
    REFUSAL_NEEDS_REASON = "refusal_needs_reason"
    TOO_MANY_JOIN_REQUESTS = "too_many_join_requests"
    TOO_MANY_JOIN_REQUESTS_A_DAY = "too_many_join_requests_a_day"


class ScimCode(StrEnum):
    """Refusals of SCIM."""

    ATTRIBUTE_MISSING = "scim_attribute_missing"
    BODY_NOT_JSON = "scim_body_not_json"
    EMAIL_EXISTS = "scim_email_exists"
    EMAIL_OF_ROLE = "scim_email_of_role"
    FILTER_NOT_HERE = "scim_filter_not_here"
    FILTER_NOT_SUPPORTED = "scim_filter_not_supported"
    FILTER_NOT_VALID = "scim_filter_not_valid"
    FILTER_TOO_LARGE = "scim_filter_too_large"
    GROUP_EXISTS = "scim_group_exists"
    NAME_OF_DELETED = "scim_name_of_deleted"
    NOT_SUPPORTED = "scim_not_supported"
    NOT_UNIQUE = "scim_not_unique"
    NO_SUCH_MEMBER = "scim_no_such_member"
    NO_SUCH_RESOURCE = "scim_no_such_resource"
    NO_TARGET = "scim_no_target"
    OPERATION_NOT_VALID = "scim_operation_not_valid"
    PATH_NOT_VALID = "scim_path_not_valid"
    READ_ONLY = "scim_read_only"
    ROLES_NOT_ADOPTED = "scim_roles_not_adopted"
    SCHEMA_MISSING = "scim_schema_missing"
    SWITCHED_OFF_HERE = "scim_switched_off_here"
    TOO_LARGE = "scim_too_large"
    TOO_MANY = "scim_too_many"
    USERNAME_FIXED = "scim_username_fixed"
    USERNAME_NOT_VALID = "scim_username_not_valid"
    USER_EXISTS = "scim_user_exists"
    VALUE_NOT_VALID = "scim_value_not_valid"
    VERSION_CHANGED = "scim_version_changed"


class InventoryCode(StrEnum):
    """Refusals about pools, nodes and devices."""

    DEVICE_NOT_ON_MAP = "device_not_on_map"
    NODE_NOT_ON_MAP = "node_not_on_map"
    NO_DEVICE_AT_PLACE = "no_device_at_place"
    NO_SUCH_DEVICE = "no_such_device"
    NO_SUCH_NODE = "no_such_node"
    NO_SUCH_POOL = "no_such_pool"
    POOL_NOT_VALID = "pool_not_valid"
    POOL_SILENT = "pool_silent"


class MachineCode(StrEnum):
    """Refusals about machines that join, and by which they are told why."""

    CLOCK_OFF = "clock_off"
    CSR_INVALID = "csr_invalid"
    IDENTITY_REPLACED = "identity_replaced"
    JOIN_TOKEN_EXPIRED = "join_token_expired"
    JOIN_TOKEN_UNKNOWN = "join_token_unknown"
    JOIN_TOKEN_USED = "join_token_used"
    JOIN_TOO_OFTEN = "join_too_often"
    MACHINE_JOINED_ALREADY = "machine_joined_already"
    MACHINE_STILL_JOINED = "machine_still_joined"
    NODES_ADDRESS_MISSING = "nodes_address_missing"
    NODE_HAS_WORKSPACES = "node_has_workspaces"
    NODE_NAME_INVALID = "node_name_invalid"
    NODE_NAME_TAKEN = "node_name_taken"
    NOT_A_JOINED_NODE = "not_a_joined_node"
    NO_AUTHORITY = "no_authority"
    NO_SUCH_JOIN_TOKEN = "no_such_join_token"
    NO_SUCH_MACHINE = "no_such_machine"
    POOL_TAKES_NO_MACHINES = "pool_takes_no_machines"
    SIGNING_KEY_INVALID = "signing_key_invalid"
    USER_OF_REDIS_LEFT = "user_of_redis_left"
    VERSION_DIFFERS = "version_differs"


class CatalogCode(StrEnum):
    """Refusals about templates and flavors."""

    NO_SUCH_FLAVOR = "no_such_flavor"
    NO_SUCH_TEMPLATE = "no_such_template"
    TEMPLATE_UNAVAILABLE = "template_unavailable"


class WorkspaceCode(StrEnum):
    """Refusals about workspaces, and why they failed."""

    # Refusals.
    CHANGED_MEANWHILE = "changed_meanwhile"
    EXPECTED_OUT_OF_RANGE = "expected_out_of_range"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    NAME_TAKEN = "name_taken"
    NODE_SILENT = "node_silent"
    NOT_POSSIBLE_NOW = "not_possible_now"
    NOT_RUNNING = "workspace_not_running"
    NOT_STARTABLE = "not_startable"
    TOO_MANY_STARTS = "too_many_starts"
    NOT_STOPPABLE = "not_stoppable"
    NO_SUCH_WORKSPACE = "no_such_workspace"
    NOT_VALID = "workspace_not_valid"
    NOT_VISIBLE = "workspace_not_visible"
    ONLY_ITS_OPERATORS = "only_its_operators"
    ONLY_ITS_USER = "only_its_user"
    LOG_NOT_READ = "log_not_read"
    PRIORITY_NOT_ALLOWED = "priority_not_allowed"
    PRIORITY_OUT_OF_RANGE = "priority_out_of_range"
    SIMULATED = "workspace_simulated"
    SOME_CHANGED_MEANWHILE = "some_changed_meanwhile"
    TICKET_NOT_ISSUED = "ticket_not_issued"
    # Why it failed, or goes back into the queue.
    APP_EXITED = "app_exited"
    CHECK_FAILED = "check_failed"
    REPARTITION_FAILED = "repartition_failed"
    DEVICE_LOST = "device_lost"
    LOST = "lost"
    MACHINE_GONE = "machine_gone"
    NOT_STARTED_IN_TIME = "not_started_in_time"
    START_TIMEOUT = "start_timeout"
    REPORTED = "reported"


class CheckCode(StrEnum):
    """Refusals about GPU checks, and what came of them."""

    CANCELLED = "check_cancelled"
    CHECK_BEGUN = "check_begun"
    LAYOUT_CHANGE_LOST = "layout_change_lost"
    CHECK_UNDER_WAY = "check_under_way"
    DEVICE_GONE = "device_gone"
    DEVICE_IN_USE = "device_in_use"
    DEVICE_PARTITIONED = "device_partitioned"
    HOURS_NOT_WHOLE = "hours_not_whole"
    HOURS_TOO_MANY = "hours_too_many"
    NODE_NOT_ANSWERING = "node_not_answering"
    NO_SUCH_CHECK = "no_such_check"
    NO_SUCH_LEVEL = "no_such_level"
    NO_VERDICT = "no_verdict"
    REPORT_UNSOUND = "report_unsound"
    SETTINGS_NOT_VALID = "check_settings_not_valid"
    WRITE_HOURS = "write_hours"


class QuotaCode(StrEnum):
    """Refusals about limits, and notes on what a new limit means."""

    AMOUNT_OUT_OF_RANGE = "amount_out_of_range"
    CAP_ABOVE_TEAM = "cap_above_team"
    CAP_EXCEEDED = "cap_exceeded"
    CAP_EXISTS = "cap_exists"
    CAP_FOR_NO_MEMBER = "cap_for_no_member"
    COHORTS_TOO_DEEP = "cohorts_too_deep"
    COHORT_GONE = "cohort_gone"
    COHORT_INSIDE_ITSELF = "cohort_inside_itself"
    COHORT_IN_USE = "cohort_in_use"
    COHORT_NAMELESS = "cohort_nameless"
    COHORT_NAME_LENGTH = "cohort_name_length"
    COHORT_NOT_VALID = "cohort_not_valid"
    CAP_OF_ALL_EXISTS = "cap_of_all_exists"
    NOT_BOTH_OWNERS = "not_both_owners"
    NO_SUCH_CAP = "no_such_cap"
    NO_SUCH_COHORT = "no_such_cohort"
    NO_SUCH_FORM = "no_such_form"
    NO_SUCH_QUOTA = "no_such_quota"
    NO_SUCH_RESOURCE = "no_such_resource"
    NUMBER_NOT_UNDERSTOOD = "number_not_understood"
    ONLY_APPROVERS_BOOK = "only_approvers_book"
    ONLY_APPROVERS_DECIDE = "only_approvers_decide"
    ONLY_COHORTS_DELETED = "only_cohorts_deleted"
    ONLY_OPERATORS_SET_LIMITS = "only_operators_set_limits"
    ONLY_OWNERS_RESERVE = "only_owners_reserve"
    ONLY_OWNERS_SPLIT = "only_owners_split"
    OWNER_GONE = "owner_gone"
    QUOTA_EXISTS = "quota_exists"
    RATE_OF_NO_ACCELERATOR = "rate_of_no_accelerator"
    RATE_OUT_OF_RANGE = "rate_out_of_range"
    RESOURCE_NAME_LENGTH = "resource_name_length"
    RESOURCE_NAME_TOO_LONG = "resource_name_too_long"
    ROW_GONE = "row_gone"
    SHORT_NAME_TAKEN = "short_name_taken"
    SITE_LIMIT_EXCEEDED = "site_limit_exceeded"
    TEAM_LIMIT_EXCEEDED = "team_limit_exceeded"
    WEIGHT_OUT_OF_RANGE = "weight_out_of_range"


class LedgerCode(StrEnum):
    """Refusals about GPU-hours."""

    CREDIT_OUT_OF_RANGE = "credit_out_of_range"
    GRANTED_OUT_OF_RANGE = "granted_out_of_range"
    HOURS_NOT_COUNTED = "hours_not_counted"
    LEDGER_NOT_OPEN = "ledger_not_open"
    NO_TEAM_OF_LEDGER = "no_team_of_ledger"


class ReservationCode(StrEnum):
    """Refusals about reservations, and whether one fits."""

    BEYOND_QUOTA = "beyond_quota"
    BOOKED_BY_OTHERS = "booked_by_others"
    BOOKED_ALREADY = "booked_already"
    CANCELLED_ALREADY = "cancelled_already"
    CHOOSE_RESOURCE = "choose_resource"
    DENIAL_WITHOUT_REASON = "denial_without_reason"
    END_NOT_IN_FUTURE = "end_not_in_future"
    ENDS_TOO_LATE = "ends_too_late"
    FITS = "reservation_fits"
    MORE_THAN_SITE_HAS = "more_than_site_has"
    NOBODY_PERMITS_THEMSELF = "nobody_permits_themself"
    NO_SUCH_PERMISSION = "no_such_permission"
    ONLY_APPROVERS_PERMIT = "only_approvers_permit"
    NOTHING_TO_CANCEL = "nothing_to_cancel"
    NOT_RESERVABLE = "not_reservable"
    NO_SUCH_RESERVATION = "no_such_reservation"
    ONLY_LESS = "only_less"
    OVER = "reservation_over"
    RESERVE_NOTHING = "reserve_nothing"
    RESOURCES_COUNT = "resources_count"
    SITE_TOO_SMALL = "site_too_small"
    START_NOT_IN_FUTURE = "start_not_in_future"
    TIME_NOT_UNDERSTOOD = "time_not_understood"
    TIME_OVER = "time_over"
    TITLE_LENGTH = "title_length"
    TOO_SHORT = "reservation_too_short"
    WAS_CANCELLED = "reservation_was_cancelled"


class RequestCode(StrEnum):
    """Refusals about requests for more, their rules and delegations."""

    AMOUNT_NOT_POSITIVE = "amount_not_positive"
    APPROVED_ALREADY = "approved_already"
    ASKED_ALREADY = "asked_already"
    ASK_FOR_LESS = "ask_for_less"
    CHOOSE_MORE_THAN_ZERO = "choose_more_than_zero"
    CORRECT_AND_ASK = "correct_and_ask"
    CORRECT_AND_DECIDE = "correct_and_decide"
    DECIDED_ALREADY = "decided_already"
    DELEGATED_ALREADY = "delegated_already"
    DELEGATE_IS_SELF = "delegate_is_self"
    DELEGATE_OF_REQUESTER = "delegate_of_requester"
    DELEGATION_END = "delegation_end"
    DELEGATION_TOO_LONG = "delegation_too_long"
    DENIAL_NEEDS_REASON = "denial_needs_reason"
    DENIED_ALREADY = "denied_already"
    END_IN_FUTURE = "end_in_future"
    GRANT_ENDED = "grant_ended"
    GRANT_OUT_OF_RANGE = "grant_out_of_range"
    HOURS_HAVE_NO_END = "hours_have_no_end"
    HOURS_OUT_OF_RANGE = "hours_out_of_range"
    ASKED_TIME_OVER = "asked_time_over"
    LEDGER_RESOURCE = "ledger_resource"
    NEEDS_NO_APPROVAL = "needs_no_approval"
    NOBODY_DECIDES_OWN = "nobody_decides_own"
    NOT_YOUR_WORKSPACE = "not_your_workspace"
    NO_BUDGET = "no_budget"
    NO_CAP = "no_cap"
    NO_SUCH_DELEGATION = "no_such_delegation"
    NO_SUCH_GRANT = "no_such_grant"
    NO_SUCH_REQUEST = "no_such_request"
    NO_SUCH_RULE = "no_such_rule"
    ONLY_APPROVERS_CHANGE_RULES = "only_approvers_change_rules"
    ONLY_APPROVERS_DECIDE_REQUEST = "only_approvers_decide_request"
    ONLY_ASKER_WITHDRAWS = "only_asker_withdraws"
    ONLY_DECIDERS_SEE_RULES = "only_deciders_see_rules"
    ONLY_DELEGATOR_TAKES_BACK = "only_delegator_takes_back"
    ONLY_OWNERS_DECIDE_CAPS = "only_owners_decide_caps"
    ONLY_OWNERS_REVOKE = "only_owners_revoke"
    ONLY_APPROVERS_REVOKE = "only_approvers_revoke"
    REASON_FOR_REQUESTER = "reason_for_requester"
    SITE_HAS_NONE = "site_has_none"
    UNTIL_IN_FUTURE = "until_in_future"
    WHY_MISSING = "why_missing"
    WHY_TOO_LONG = "why_too_long"
    WITHDRAWN_ALREADY = "withdrawn_already"
    WORKSPACE_OF_YOURS = "workspace_of_yours"


ENUMERATIONS: tuple[type[StrEnum], ...] = (
    Rule, PlacementCode, AdmissionCode, WaitBasis, CommonCode, EventCode, AccountCode, MfaCode, IdentityCode,
    InventoryCode, CatalogCode, WorkspaceCode, CheckCode, QuotaCode, LedgerCode, ReservationCode, RequestCode,
    WebhookCode, ChannelCode, ExchangeCode, JoinCode, ScimCode, MachineCode,
)  # fmt: skip
"""No two of these share a value, so that a row or a problem document needs no more than the value. A
`PreemptionCode` is kept under a name of its own: that a reservation begins is its `booking`, too."""
_BY_VALUE: dict[str, StrEnum] = {code.value: code for each in ENUMERATIONS for code in each}


def code_named(value: str) -> StrEnum:
    """The code of this value. Raises `LookupError`."""
    return _BY_VALUE[value]
