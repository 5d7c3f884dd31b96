"""Texts of SCIM errors, which appear in the log of the identity provider."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.people.scim.codes import ScimCode

_NARROW = _("Ask for less at once.")

TEXTS: dict[StrEnum, Text] = {
    ScimCode.ATTRIBUTE_MISSING: Text(_("“%(attribute)s” is missing."), _("Send it.")),
    ScimCode.BODY_NOT_JSON: Text(_("The body is no JSON object."), _("Send one.")),
    ScimCode.EMAIL_EXISTS: Text(
        _("Another account has this e-mail address."), _("Send another one, or change that account.")
    ),
    ScimCode.EMAIL_OF_ROLE: Text(
        _("%(name)s has a role in the portal that SCIM did not give, and keeps its address."),
        _("Have an administrator change the address in the portal."),
    ),
    ScimCode.FILTER_NOT_HERE: Text(_("There is nothing to filter here."), _("Ask without a filter.")),
    ScimCode.FILTER_NOT_SUPPORTED: Text(
        _("“%(attribute)s” cannot be filtered by, or not like this."), _("See docs/scim.md for what can.")
    ),
    ScimCode.FILTER_NOT_VALID: Text(
        _("The filter cannot be understood at character %(position)d."), _("Correct it there.")
    ),
    ScimCode.FILTER_TOO_LARGE: Text(_("The filter is too long or too deep."), _NARROW),
    ScimCode.GROUP_EXISTS: Text(_("There is a group “%(name)s”."), _("Change that one.")),
    ScimCode.NAME_OF_DELETED: Text(
        _("%(name)s was the name of an account that has been deleted, and nobody else gets it."),
        _("Send another name."),
    ),
    ScimCode.NOT_SUPPORTED: Text(_("This part of SCIM is not supported."), _("See ServiceProviderConfig.")),
    ScimCode.NOT_UNIQUE: Text(_("Another one with this name was made just now."), _("Ask for it.")),
    ScimCode.NO_SUCH_MEMBER: Text(_("There is no user “%(id)s”."), _("Create the user first.")),
    ScimCode.NO_SUCH_RESOURCE: Text(_("There is no such resource."), _("Look for it by a filter.")),
    ScimCode.NO_TARGET: Text(
        _("There is nothing at the path “%(path)s”."), _("Name something that is there.")
    ),
    ScimCode.OPERATION_NOT_VALID: Text(
        _("These are no operations of PATCH."), _("Send add, replace or remove, with what they need.")
    ),
    ScimCode.PATH_NOT_VALID: Text(_("“%(path)s” is no path."), _("Name an attribute of the schema.")),
    ScimCode.READ_ONLY: Text(_("“%(attribute)s” is only read."), _("Leave it out.")),
    ScimCode.ROLES_NOT_ADOPTED: Text(
        _("%(name)s has roles in the portal, and SCIM takes up no such account."),
        _("Have an administrator take the roles away first."),
    ),
    ScimCode.SCHEMA_MISSING: Text(_("“schemas” does not name %(schema)s."), _("Send it.")),
    ScimCode.SWITCHED_OFF_HERE: Text(
        _("An administrator has deactivated %(name)s."), _("Have an administrator reactivate the account.")
    ),
    ScimCode.TOO_LARGE: Text(_("The body is too large."), _NARROW),
    ScimCode.TOO_MANY: Text(_("There are more than %(limit)d of them."), _NARROW),
    ScimCode.USERNAME_FIXED: Text(
        _("The account is called %(name)s for ever: its home folder carries the name."),
        _("Send this name, or create another user."),
    ),
    ScimCode.USERNAME_NOT_VALID: Text(
        _(
            "“%(name)s” cannot be a user name: up to %(limit)d letters, digits, dots, hyphens and "
            "underscores, beginning and ending with a letter or digit."
        ),
        _("Map another attribute to userName, as docs/scim.md says."),
    ),
    ScimCode.USER_EXISTS: Text(
        _("There is an account %(name)s."), _("Change that one, or have accounts taken up in the settings.")
    ),
    ScimCode.VALUE_NOT_VALID: Text(_("The value of “%(attribute)s” cannot be taken."), _("Correct it.")),
    ScimCode.VERSION_CHANGED: Text(_("It has been changed meanwhile."), _("Read it again.")),
}
