"""Texts of errors about repository URLs."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.catalog.repositories.codes import RepositoryCode
from portal.common.reasons.wording import Text

TEXTS: dict[StrEnum, Text] = {
    RepositoryCode.URL_CHARACTERS: Text(
        _("The Git address contains spaces, line breaks, or escaped dots or slashes."),
        _("Copy the clone address from the repository's page."),
    ),
    RepositoryCode.URL_CREDENTIALS: Text(
        _("The Git address contains a user name, password or token."),
        _("Save the token as a secret, then select it as the credential."),
    ),
    RepositoryCode.URL_MISSING: Text(
        _("A branch or credential was entered without a Git repository."),
        _("Enter the address of the repository."),
    ),
    RepositoryCode.URL_OPTION: Text(
        _("The Git address starts with a hyphen."),
        _("Enter it as https://host/path, ssh://git@host/path or git@host:path."),
    ),
    RepositoryCode.URL_SCHEME: Text(
        _("Git repositories can be cloned over HTTPS or SSH only."),
        _("Enter it as https://host/path, ssh://git@host/path or git@host:path."),
    ),
    RepositoryCode.URL_SHAPE: Text(
        _("The Git address is not valid."),
        _("Enter it as https://host/path, ssh://git@host/path or git@host:path."),
    ),
    RepositoryCode.URL_TOO_LONG: Text(_("The Git address is too long. Use at most %(most)d characters.")),
    RepositoryCode.REF_INVALID: Text(
        _("The branch, tag or commit name is not valid."),
        _("Enter the name as Git shows it, for example main."),
    ),
}
