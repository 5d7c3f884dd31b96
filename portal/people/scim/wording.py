"""Texts of SCIM errors, which appear in the log of the identity provider."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.people.scim.codes import ScimCode

_NARROW = _("Split it into smaller requests.")

TEXTS: dict[StrEnum, Text] = {
    ScimCode.ATTRIBUTE_MISSING: Text(_("“%(attribute)s” is missing."), _("Add it to the request.")),
    ScimCode.BODY_NOT_JSON: Text(_("The request body is not a JSON object."), _("Send a JSON object.")),
    ScimCode.EMAIL_EXISTS: Text(
        _("Another account uses this e-mail address."), _("Send another address, or change that account.")
    ),
    ScimCode.EMAIL_OF_ROLE: Text(
        _("%(name)s has a portal role from outside SCIM, so SCIM cannot change its address."),
        _("Ask an administrator to change the address in the portal."),
    ),
    ScimCode.FILTER_NOT_HERE: Text(_("This endpoint does not support filters."), _("Remove the filter.")),
    ScimCode.FILTER_NOT_SUPPORTED: Text(
        _("This filter on “%(attribute)s” is not supported."), _("See docs/scim.md for supported filters.")
    ),
    ScimCode.FILTER_NOT_VALID: Text(
        _("The filter has a syntax error at character %(position)d."), _("Correct the filter.")
    ),
    ScimCode.FILTER_TOO_LARGE: Text(_("The filter is too long or too deeply nested."), _NARROW),
    ScimCode.GROUP_EXISTS: Text(_("A group “%(name)s” already exists."), _("Update that group instead.")),
    ScimCode.NAME_OF_DELETED: Text(
        _("%(name)s belonged to a deleted account and cannot be reused."),
        _("Send another userName."),
    ),
    ScimCode.NOT_SUPPORTED: Text(
        _("This SCIM feature is not supported."), _("See ServiceProviderConfig for supported features.")
    ),
    ScimCode.NOT_UNIQUE: Text(
        _("Another request has just created a resource with this name."), _("Fetch that resource instead.")
    ),
    ScimCode.NO_SUCH_MEMBER: Text(_("User “%(id)s” not found."), _("Create the user first.")),
    ScimCode.NO_SUCH_RESOURCE: Text(_("Resource not found."), _("Search for it with a filter.")),
    ScimCode.NO_TARGET: Text(
        _("The path “%(path)s” has no target."), _("Use the path of an existing value.")
    ),
    ScimCode.OPERATION_NOT_VALID: Text(
        _("The PATCH operations are not valid."), _("Send add, replace or remove with the required fields.")
    ),
    ScimCode.PATH_NOT_VALID: Text(_("“%(path)s” is not a valid path."), _("Use an attribute of the schema.")),
    ScimCode.READ_ONLY: Text(_("“%(attribute)s” is read-only."), _("Remove it from the request.")),
    ScimCode.ROLES_NOT_ADOPTED: Text(
        _("%(name)s has portal roles, so SCIM cannot adopt the account."),
        _("Ask an administrator to remove the roles first."),
    ),
    ScimCode.SCHEMA_MISSING: Text(_("“schemas” does not include %(schema)s."), _("Add it to the request.")),
    ScimCode.SWITCHED_OFF_HERE: Text(
        _("An administrator has deactivated %(name)s."), _("Ask an administrator to reactivate the account.")
    ),
    ScimCode.TOO_LARGE: Text(_("The request body is too large."), _NARROW),
    ScimCode.TOO_MANY: Text(_("The request has more than %(limit)d entries."), _NARROW),
    ScimCode.USERNAME_FIXED: Text(
        _("The userName %(name)s cannot be changed."),
        _("Send this userName, or create another user."),
    ),
    ScimCode.USERNAME_NOT_VALID: Text(
        _(
            "“%(name)s” is neither an e-mail address nor a name of letters, digits, dots, hyphens and "
            "underscores that begins and ends with a letter or digit."
        ),
        _("Map another attribute to userName (see docs/scim.md)."),
    ),
    ScimCode.USER_EXISTS: Text(
        _("An account %(name)s already exists."),
        _("Update that account, or enable adoption of accounts in the settings."),
    ),
    ScimCode.VALUE_NOT_VALID: Text(_("The value of “%(attribute)s” is not valid."), _("Correct the value.")),
    ScimCode.VERSION_CHANGED: Text(
        _("The resource has changed since you read it."), _("Read it again, then retry.")
    ),
}
