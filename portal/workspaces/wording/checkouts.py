"""Texts about repositories that workspaces clone. Reasons of clones have `url` as a parameter."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.workspaces.codes import GitCode

TEXTS: dict[StrEnum, Text] = {
    GitCode.NOT_INSTALLED: Text(
        _("Git is not installed on any node, so no repository can be cloned."),
        _("Leave the repository out, or ask an operator to install git on the nodes."),
    ),
    GitCode.SECRET_UNKNOWN: Text(
        _("There is no secret “%(name)s” that can open the repository."),
        _("Save it first, or leave the credential out."),
    ),
    GitCode.NOT_CLONED: Text(
        _("Could not clone %(url)s: Git ended with an error."), _("Read what it said in the log.")
    ),
    GitCode.NOT_CLONED_AUTH: Text(
        _("Could not clone %(url)s: the server did not accept the credential, or asks for one."),
        _("Choose a secret with a token or key that may read the repository."),
    ),
    GitCode.NOT_CLONED_CERTIFICATE: Text(
        _("Could not clone %(url)s: the certificate of its server is not trusted here."),
        _("Ask an operator to add its authority to the certificates of the node."),
    ),
    GitCode.NOT_CLONED_DISK_FULL: Text(
        _("Could not clone %(url)s: the disk of the home folder is full."),
        _("Delete some files, then start it again."),
    ),
    GitCode.NOT_CLONED_EGRESS: Text(
        _("Could not clone %(url)s: this workspace may not reach %(host)s."),
        _("Ask an operator or an owner of the team to allow it."),
    ),
    GitCode.NOT_CLONED_HOST_KEY: Text(
        _("Could not clone %(url)s: the key of %(host)s is not known."),
        _("Add its line of known_hosts below the key in the secret."),
    ),
    GitCode.NOT_CLONED_NO_GIT: Text(
        _("Could not clone %(url)s: git is not installed on the node."), _("Ask an operator to install it.")
    ),
    GitCode.NOT_CLONED_NO_PLACE: Text(
        _("Could not clone %(url)s: the node has no sandbox, so there is no safe place for a credential."),
        _("Choose a pool whose nodes have one."),
    ),
    GitCode.NOT_CLONED_NO_REF: Text(
        _("Could not clone %(url)s: it has no branch, tag or commit “%(ref)s”."),
        _("Make a workspace with a name that it has."),
    ),
    GitCode.NOT_CLONED_NO_SECRET: Text(
        _("Could not clone %(url)s: the secret “%(secret)s” is not there, or cannot be read."),
        _("Save it again, then restart the workspace."),
    ),
    GitCode.NOT_CLONED_NOT_FOUND: Text(
        _("Could not clone %(url)s: there is no such repository, or the credential may not see it."),
        _("Check the address and the credential."),
    ),
    GitCode.NOT_CLONED_TIMED_OUT: Text(
        _("Could not clone %(url)s: it took too long."), _("Clone it in a terminal, which may take its time.")
    ),
    GitCode.NOT_CLONED_TOO_LARGE: Text(
        _("Could not clone %(url)s: it is larger than a home folder may be."),
        _("Clone a part of it in a terminal: git clone --depth 1."),
    ),
    GitCode.NOT_CLONED_UNREACHABLE: Text(
        _("Could not clone %(url)s: %(host)s does not answer."),
        _("Check the address, then start the workspace again."),
    ),
    GitCode.NOT_CLONED_WRONG_SECRET: Text(
        _(
            "Could not clone %(url)s: the secret “%(secret)s” is a token where a key is needed, or a key "
            "where a token is."
        ),
        _("Use a private key for an address of SSH, and a token for one of HTTPS."),
    ),
    GitCode.SCRIPT_FAILED: Text(
        _("The script of the dotfiles %(url)s failed."), _("Read what it said in the log, and mend it there.")
    ),
    GitCode.SCRIPT_TIMED_OUT: Text(
        _("The script of the dotfiles %(url)s took too long and was ended."),
        _("Have it do less, or run it in a terminal."),
    ),
}
