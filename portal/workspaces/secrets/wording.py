"""Texts of the reasons about secrets of workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Params, Text, listed
from portal.workspaces.secrets.codes import SecretCode


def _kib(params: Params) -> Params:
    return {**params, "limit": params["limit"] // 1024}


TEXTS: dict[StrEnum, Text] = {
    SecretCode.CHANGED_MEANWHILE: Text(
        _("The secret %(name)s was changed while it was being read."), _("Start the workspace again.")
    ),
    SecretCode.DESCRIPTION_TOO_LONG: Text(_("A description has at most %(limit)d characters.")),
    SecretCode.KIND_UNKNOWN: Text(_("A secret is an environment variable or a file."), _("Use env or file.")),
    SecretCode.NAME_INVALID: Text(
        _("The name of a secret is that of an environment variable: letters, digits and _, at most 64."),
        _("Write it as WANDB_API_KEY."),
    ),
    SecretCode.NAME_RESERVED: Text(
        _("Programs go by the variable %(name)s, so no secret may have its name."), _("Choose another name.")
    ),
    SecretCode.NAME_TAKEN: Text(
        _("There is a secret %(name)s here already."),
        _("Give that one another value, or choose another name."),
    ),
    SecretCode.NOT_VALID: Text(_("The secret is not valid."), _("Mend the fields that are named.")),
    SecretCode.NO_SUCH_SECRET: Text(_("There is no such secret."), _("List those that there are.")),
    SecretCode.TOO_LARGE_TOGETHER: Text(
        _("The secrets of a workspace have at most %(limit)d KiB together."),
        _("Name fewer, or put large files into the home folder."),
        prepare=_kib,
    ),
    SecretCode.TOO_MANY: Text(_("Limit of %(limit)d secrets reached."), _("Delete one first.")),
    SecretCode.TOO_MANY_NAMED: Text(_("A workspace names at most %(limit)d secrets."), _("Name fewer.")),
    SecretCode.UNKNOWN_NAMED: Text(
        _("Neither you nor the team have a secret of this name: %(names)s."),
        _("Save it first, or leave its name out."),
        prepare=listed("names"),
    ),
    SecretCode.UNREADABLE: Text(
        _("The secret %(name)s was saved under another secret key of the portal and cannot be read."),
        _("Enter its value again."),
    ),
    SecretCode.VALUE_AND_VAULT: Text(
        _("A secret has a value here or a place in Vault, and not both."), _("Empty one of them.")
    ),
    SecretCode.VALUE_EMPTY: Text(_("The value is empty.")),
    SecretCode.VALUE_INVALID: Text(
        _("A value is text in UTF-8 without NUL, of at most %(limit)d KiB."),
        _("Encode other data, as with base64."),
        prepare=_kib,
    ),
    SecretCode.VAULT_AWAY: Text(
        _("Vault, which keeps a secret of this workspace, does not answer."),
        _("Start the workspace again in some minutes; if this stays, tell an operator."),
    ),
    SecretCode.VAULT_CERTIFICATE: Text(
        _("The certificate of Vault, which keeps a secret of this workspace, is not one that is believed."),
        _("Have an operator set BERTH_VAULT_CA_FILE to the file of its authority."),
    ),
    SecretCode.VAULT_FORBIDDEN: Text(
        _("The portal may not read %(path)s in Vault."),
        _("Have the policy of the portal's role in Vault allow it, then start the workspace again."),
    ),
    SecretCode.VAULT_KEY_INVALID: Text(
        _("A key in Vault has 1 to 100 characters on one line."), _("Enter it exactly as in Vault.")
    ),
    SecretCode.VAULT_LOGIN_REFUSED: Text(
        _("Vault does not let the portal in."),
        _("Have an operator renew its AppRole or token; the portal's log says more."),
    ),
    SecretCode.VAULT_NOT_A_VALUE: Text(
        _("What Vault has under %(key)s at %(path)s is no text of 1 byte to %(limit)d KiB without NUL."),
        _("Write it to Vault as text, then start the workspace again."),
        prepare=_kib,
    ),
    SecretCode.VAULT_NOT_CONFIGURED: Text(
        _("This site reads no secrets from Vault."),
        _("Give the secret a value, or have an operator set BERTH_VAULT_ADDR."),
    ),
    SecretCode.VAULT_NO_PATHS: Text(
        _("No path of Vault is open to these secrets."),
        _("Give the secret a value, or have an operator set the paths."),
    ),
    SecretCode.VAULT_NO_SUCH_KEY: Text(
        _("Vault has no key %(key)s at %(path)s."),
        _("Write it there, or change the secret's key, then start the workspace again."),
    ),
    SecretCode.VAULT_NO_SUCH_PATH: Text(
        _("Vault has nothing at %(path)s, or its present version was deleted."),
        _("Write it there, or change the secret's path, then start the workspace again."),
    ),
    SecretCode.VAULT_PATH_INVALID: Text(
        _("A path in Vault is names with slashes between them: letters, digits and _ . @ + : = ~ -."),
        _("Write it below the mount, as berth/users/ada/wandb."),
    ),
    SecretCode.VAULT_PATH_LOST: Text(
        _("The secret %(name)s names %(path)s in Vault, which is not open to it any more."),
        _("Change its path, then start the workspace again."),
    ),
    SecretCode.VAULT_PATH_NOT_ALLOWED: Text(
        _("These secrets may lie in Vault below %(allowed)s only."),
        _("Name a path there."),
        prepare=listed("allowed"),
    ),
    SecretCode.VAULT_SEALED: Text(
        _("Vault is sealed. It has a secret of this workspace."),
        _("Have Vault unsealed, then start the workspace again."),
    ),
    SecretCode.VAULT_UNEXPECTED: Text(
        _("What Vault answered about %(path)s is not understood."),
        _("Have an operator look whether BERTH_VAULT_MOUNT is a KV engine of version 2."),
    ),
}
