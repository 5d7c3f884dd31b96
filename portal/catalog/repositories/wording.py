"""Texts of errors about addresses of repositories."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.catalog.repositories.codes import RepositoryCode
from portal.common.reasons.wording import Text

TEXTS: dict[StrEnum, Text] = {
    RepositoryCode.URL_CHARACTERS: Text(
        _("The address of a Git repository has no spaces, line breaks or escaped dots and slashes."),
        _("Copy it from the page of the repository."),
    ),
    RepositoryCode.URL_CREDENTIALS: Text(
        _("The address of a Git repository cannot contain a user name, password or token."),
        _("Save the token as a secret and choose it as the credential."),
    ),
    RepositoryCode.URL_MISSING: Text(
        _("A branch or a credential needs a Git repository."), _("Enter the address, too.")
    ),
    RepositoryCode.URL_OPTION: Text(
        _("The address of a Git repository does not begin with a hyphen."),
        _("Write https://host/path, ssh://git@host/path or git@host:path."),
    ),
    RepositoryCode.URL_SCHEME: Text(
        _("A Git repository is cloned by HTTPS or SSH only."),
        _("Write https://host/path, ssh://git@host/path or git@host:path."),
    ),
    RepositoryCode.URL_SHAPE: Text(
        _("This is not the address of a Git repository."),
        _("Write https://host/path, ssh://git@host/path or git@host:path."),
    ),
    RepositoryCode.URL_TOO_LONG: Text(_("The address of a Git repository has at most %(most)d characters.")),
    RepositoryCode.REF_INVALID: Text(
        _("This is not the name of a branch, a tag or a commit."),
        _("Write it as Git shows it, such as main."),
    ),
}
