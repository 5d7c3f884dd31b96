"""Error codes for SCIM."""

from __future__ import annotations

from enum import StrEnum


class ScimCode(StrEnum):
    """Errors of SCIM requests."""

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
