"""Texts of the reasons about secrets of workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Params, Text, joined_lists
from portal.workspaces.secrets.codes import SecretCode


def _kib(params: Params) -> Params:
    return {**params, "limit": params["limit"] // 1024}


TEXTS: dict[StrEnum, Text] = {
    SecretCode.CHANGED_MEANWHILE: Text(
        _("The secret %(name)s changed while it was being read."), _("Start the workspace again.")
    ),
    SecretCode.DESCRIPTION_TOO_LONG: Text(_("Use at most %(limit)d characters.")),
    SecretCode.KIND_UNKNOWN: Text(
        _("Unknown kind of secret."), _("Use env for an environment variable, or file.")
    ),
    SecretCode.NAME_INVALID: Text(
        _("Use the name of an environment variable: up to 64 letters, digits and underscores."),
        _("Enter a name such as WANDB_API_KEY."),
    ),
    SecretCode.NAME_RESERVED: Text(
        _("The variable %(name)s is reserved for programs."), _("Choose another name.")
    ),
    SecretCode.NAME_TAKEN: Text(
        _("A secret %(name)s already exists."), _("Change its value, or choose another name.")
    ),
    SecretCode.NOT_VALID: Text(
        _("The secret was not saved because some fields are not valid."), _("Correct the marked fields.")
    ),
    SecretCode.NO_SUCH_SECRET: Text(_("Secret not found."), _("Check the list of secrets.")),
    SecretCode.TOO_LARGE_TOGETHER: Text(
        _("The secrets of a workspace cannot exceed %(limit)d KiB in total."),
        _("Choose fewer secrets, or store large files in the home folder."),
        prepare=_kib,
    ),
    SecretCode.TOO_MANY: Text(_("Limit of %(limit)d secrets reached."), _("Delete a secret first.")),
    SecretCode.TOO_MANY_NAMED: Text(
        _("You can choose up to %(limit)d secrets for a workspace."), _("Choose fewer secrets.")
    ),
    SecretCode.UNKNOWN_NAMED: Text(
        _("Neither you nor the team has these secrets: %(names)s."),
        _("Save the secrets first, or remove their names."),
        prepare=joined_lists("names"),
    ),
    SecretCode.UNREADABLE: Text(
        _("The secret %(name)s cannot be decrypted because the portal's secret key has changed."),
        _("Enter its value again."),
    ),
    SecretCode.VALUE_AND_VAULT: Text(
        _("A secret cannot have both a value and a Vault path."), _("Clear one of the two fields.")
    ),
    SecretCode.VALUE_EMPTY: Text(_("Enter a value.")),
    SecretCode.VALUE_INVALID: Text(
        _("The value must be UTF-8 text of up to %(limit)d KiB without NUL."),
        _("Encode other data, for example with base64."),
        prepare=_kib,
    ),
    SecretCode.VAULT_AWAY: Text(
        _("A secret of this workspace is in Vault, which is not responding."),
        _("Start the workspace again in a few minutes. If the problem persists, contact an operator."),
    ),
    SecretCode.VAULT_CERTIFICATE: Text(
        _("A secret of this workspace is in Vault, whose certificate is not trusted."),
        _("Ask an operator to set BERTH_VAULT_CA_FILE to the certificate of its authority."),
    ),
    SecretCode.VAULT_FORBIDDEN: Text(
        _("The portal has no permission to read %(path)s in Vault."),
        _("Ask an operator to allow the path in Vault's policy, then start the workspace again."),
    ),
    SecretCode.VAULT_KEY_INVALID: Text(
        _("A Vault key must have 1 to 100 characters on one line."), _("Enter the key exactly as in Vault.")
    ),
    SecretCode.VAULT_LOGIN_REFUSED: Text(
        _("Vault rejected the portal's credentials."),
        _("Ask an operator to check the portal's log, and to renew its AppRole or token."),
    ),
    SecretCode.VAULT_NOT_A_VALUE: Text(
        _("The key %(key)s at %(path)s in Vault must be text of 1 byte to %(limit)d KiB without NUL."),
        _("Save the value in Vault as text, then start the workspace again."),
        prepare=_kib,
    ),
    SecretCode.VAULT_NOT_CONFIGURED: Text(
        _("Vault is not configured."),
        _("Enter a value for the secret, or ask an operator to set BERTH_VAULT_ADDR."),
    ),
    SecretCode.VAULT_NO_PATHS: Text(
        _("No Vault path is allowed for these secrets."),
        _("Enter a value for the secret, or ask an operator to allow a path."),
    ),
    SecretCode.VAULT_NO_SUCH_KEY: Text(
        _("%(path)s in Vault has no key %(key)s."),
        _("Add the key in Vault or correct the secret's key, then start the workspace again."),
    ),
    SecretCode.VAULT_NO_SUCH_PATH: Text(
        _("%(path)s does not exist in Vault, or its current version was deleted."),
        _("Save the value there or correct the secret's path, then start the workspace again."),
    ),
    SecretCode.VAULT_PATH_INVALID: Text(
        _("A Vault path can contain letters, digits, slashes and _ . @ + : = ~ - only."),
        _("Enter a path below the mount, for example berth/users/ada/wandb."),
    ),
    SecretCode.VAULT_PATH_LOST: Text(
        _("The secret %(name)s is no longer allowed to use %(path)s in Vault."),
        _("Change its path, then start the workspace again."),
    ),
    SecretCode.VAULT_PATH_NOT_ALLOWED: Text(
        _("These secrets can only use Vault paths below %(allowed)s."),
        _("Enter a path below one of these."),
        prepare=joined_lists("allowed"),
    ),
    SecretCode.VAULT_SEALED: Text(
        _("A secret of this workspace is in Vault, which is sealed."),
        _("Ask an operator to unseal Vault, then start the workspace again."),
    ),
    SecretCode.VAULT_UNEXPECTED: Text(
        _("Vault returned an unexpected response for %(path)s."),
        _("Ask an operator to check that BERTH_VAULT_MOUNT is a KV version 2 engine."),
    ),
}
