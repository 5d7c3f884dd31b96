"""Texts about repositories that workspaces clone. Clone reasons have a `url` parameter."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Params, Text
from portal.workspaces.codes import GitCode


def _blocked(params: Params) -> Params:
    """Add the blocking `setting`, the `target`, who can change the setting (`who`), and what to `allow`."""
    names = {"name": params.get("name", "")}
    settings = {
        "template": gettext("the network setting of the template “%(name)s”") % names,
        "team": gettext("the network setting of the team “%(name)s”") % names,
        "pool": gettext("the network setting of the pool “%(name)s”") % names,
    }
    rule, host, address = params.get("rule", ""), params["host"], params.get("address", "")
    operator = gettext("an operator")
    return {
        **params,
        "setting": settings.get(rule) or gettext("the network setting BERTH_EGRESS of the node"),
        "target": f"{host} ({address})" if address and address != host else host,
        "who": gettext("an operator or a maintainer of the template") if rule == "template" else operator,
        "allow": address or host,
    }


TEXTS: dict[StrEnum, Text] = {
    GitCode.NOT_INSTALLED: Text(
        _("Git is not installed on any node, so repositories cannot be cloned."),
        _("Leave the repository empty, or ask an operator to install Git on the nodes."),
    ),
    GitCode.SECRET_UNKNOWN: Text(
        _("Secret “%(name)s” not found."), _("Save the secret first, or leave the credential empty.")
    ),
    GitCode.NOT_CLONED: Text(
        _("Could not clone %(url)s: Git failed."), _("Check the message from Git on the workspace's page.")
    ),
    GitCode.NOT_CLONED_AUTH: Text(
        _("Could not clone %(url)s: the server requires a valid credential."),
        _("Choose a secret with a token or SSH key that can read the repository."),
    ),
    GitCode.NOT_CLONED_CERTIFICATE: Text(
        _("Could not clone %(url)s: the server's certificate is not trusted."),
        _("Ask an operator to add its certificate authority to the node."),
    ),
    GitCode.NOT_CLONED_DISK_FULL: Text(
        _("Could not clone %(url)s: the disk of the home folder is full."),
        _("Delete files that you no longer need, then start the workspace again."),
    ),
    GitCode.NOT_CLONED_EGRESS: Text(
        _("Could not clone %(url)s: %(setting)s blocks %(target)s."),
        _("Ask %(who)s to allow %(allow)s there."),
        prepare=_blocked,
    ),
    GitCode.NOT_CLONED_HOST_KEY: Text(
        _("Could not clone %(url)s: host key verification failed for %(host)s."),
        _("Add the known_hosts line of %(host)s below the key in the secret."),
    ),
    GitCode.NOT_CLONED_NO_GIT: Text(
        _("Could not clone %(url)s: Git is not installed on the node."), _("Ask an operator to install Git.")
    ),
    GitCode.NOT_CLONED_NO_PLACE: Text(
        _("Could not clone %(url)s: the node has no sandbox, which credentials require."),
        _("Choose a pool whose nodes have a sandbox."),
    ),
    GitCode.NOT_CLONED_NO_REF: Text(
        _("Could not clone %(url)s: the repository has no branch, tag or commit “%(ref)s”."),
        _("Create a workspace with an existing branch, tag or commit."),
    ),
    GitCode.NOT_CLONED_NO_SECRET: Text(
        _("Could not clone %(url)s: the secret “%(secret)s” is missing or unreadable."),
        _("Save the secret again, then restart the workspace."),
    ),
    GitCode.NOT_CLONED_NOT_FOUND: Text(
        _("Could not clone %(url)s: the repository does not exist, or the credential has no access to it."),
        _("Check the address and the credential."),
    ),
    GitCode.NOT_CLONED_TIMED_OUT: Text(
        _("Could not clone %(url)s: the time limit was exceeded."),
        _("Clone the repository in a terminal, which has no time limit."),
    ),
    GitCode.NOT_CLONED_TOO_LARGE: Text(
        _("Could not clone %(url)s: the repository exceeds the size limit of the home folder."),
        _("Clone a part of it in a terminal, for example with git clone --depth 1."),
    ),
    GitCode.NOT_CLONED_UNREACHABLE: Text(
        _("Could not clone %(url)s: %(host)s is not responding."),
        _("Check the address, then start the workspace again."),
    ),
    GitCode.NOT_CLONED_WRONG_SECRET: Text(
        _("Could not clone %(url)s: the secret “%(secret)s” does not match the type of address."),
        _("Use a private key for an SSH address, and a token for an HTTPS address."),
    ),
    GitCode.SCRIPT_FAILED: Text(
        _("The script of the dotfiles %(url)s failed."), _("Check the log, and fix the script.")
    ),
    GitCode.SCRIPT_TIMED_OUT: Text(
        _("The script of the dotfiles %(url)s exceeded the time limit and was stopped."),
        _("Shorten the script, or run it in a terminal."),
    ),
}
