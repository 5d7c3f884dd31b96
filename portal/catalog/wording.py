"""Texts of errors and warnings about templates and flavors."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.catalog.codes import CatalogCode
from portal.common.reasons.wording import Text, durations, joined_lists

TEXTS: dict[StrEnum, Text] = {
    CatalogCode.ACCELERATOR_NEEDED: Text(
        _("A model, MIG profile or share was set without accelerators."),
        _("Set at least 1 accelerator, or leave these fields empty."),
    ),
    CatalogCode.ARGV_INVALID: Text(
        _("The command must be a list of 1 to %(most)s text arguments."),
        _("Start with the program and enter each argument separately."),
    ),
    CatalogCode.ENTRY_DEPRECATED: Text(_("“%(name)s” is deprecated."), _("Choose another one.")),
    CatalogCode.ENTRY_GONE: Text(_("“%(name)s” has been deleted."), _("Reload the list.")),
    CatalogCode.ENTRY_HAS_SUCCESSOR: Text(
        _("“%(name)s” is deprecated."), _("Choose “%(successor)s” instead.")
    ),
    CatalogCode.ENTRY_NOT_VALID: Text(
        _("The entry was not saved because some fields are not valid."), _("Correct the marked fields.")
    ),
    CatalogCode.ENV_INVALID: Text(
        _("Environment variables must be a map of at most %(most)s names to text values."),
        _("Correct the variables."),
    ),
    CatalogCode.ENV_NAME_INVALID: Text(
        _("“%(name)s” is not a valid environment variable name."),
        _("Use letters, digits and underscores, and do not start with a digit."),
    ),
    CatalogCode.ENV_NAME_RESERVED: Text(_("“%(name)s” is reserved for Berth."), _("Remove it.")),
    CatalogCode.FIELD_FIXED: Text(
        _("“%(field)s” cannot be changed later."), _("Create a new entry, then delete this one.")
    ),
    CatalogCode.FLAVOR_NOT_FOR_TEAM: Text(
        _("“%(flavor)s” is not available to team %(team)s."), _("Choose another size or team.")
    ),
    CatalogCode.MIG_TAKES_WHOLE_INSTANCES: Text(
        _("A MIG profile cannot be combined with a share or models."),
        _("Leave the share and the models empty."),
    ),
    CatalogCode.MODEL_OR_MODELS: Text(
        _("A single model and a list of models were both set."),
        _("Add the single model to the list, and clear the single model."),
    ),
    CatalogCode.MODELS_INVALID: Text(
        _("Models must be a list of at most %(most)s names."), _("Use the model names shown on the GPU map.")
    ),
    CatalogCode.MOUNTS_INVALID: Text(
        _("Folders must be a list of at most %(most)s different names."),
        _("Use names from BERTH_MOUNTS of the nodes, such as imagenet, or scratch:rw to allow writing."),
    ),
    CatalogCode.NO_SUCH_FLAVOR: Text(
        _("Flavor “%(slug)s” not found."), _("Choose one of: %(known)s."), prepare=joined_lists("known")
    ),
    CatalogCode.NO_SUCH_ICON: Text(
        _("Icon “%(icon)s” not found."), _("Choose one of: %(known)s."), prepare=joined_lists("known")
    ),
    CatalogCode.NO_SUCH_SUCCESSOR: Text(
        _("“%(slug)s” cannot be the successor."), _("Choose one that the same users may use.")
    ),
    CatalogCode.NO_SUCH_TEAM_NAMED: Text(
        _("Team “%(slug)s” not found."), _("Enter the slug of an existing team.")
    ),
    CatalogCode.NO_SUCH_POOL_NAMED: Text(
        _("Pool “%(slug)s” not found."), _("Enter the slug of an existing pool.")
    ),
    CatalogCode.NO_SUCH_TEMPLATE: Text(
        _("Template “%(slug)s” not found."), _("Choose one of: %(known)s."), prepare=joined_lists("known")
    ),
    CatalogCode.EGRESS_INVALID: Text(
        _("The list of allowed hosts and networks is not valid."),
        _(
            "Separate entries with commas, for example packages.example, *.example.org, "
            "git.example.org:22, 10.1.0.0/16."
        ),
    ),
    CatalogCode.PATH_INVALID: Text(
        _("“%(path)s” is not a valid app path."), _("Start with a single “/”, without host or spaces.")
    ),
    CatalogCode.PLACEHOLDER_UNKNOWN: Text(
        _("“{%(name)s}” is not a known placeholder."),
        _("Use one of: %(known)s."),
        prepare=joined_lists("known"),
    ),
    CatalogCode.PORT_MISSING: Text(
        _("The template does not pass a port to its program."),
        _("Add {port} to the command or to an environment variable."),
    ),
    CatalogCode.SECRET_FOUND: Text(
        _("“%(where)s” contains a secret that all users of the template could read."),
        _("Remove the secret, and revoke it with its issuer."),
    ),
    CatalogCode.SECRET_LIKELY: Text(
        _("“%(where)s” looks like a secret. All users of the template can read it."),
        _("Remove it if it is a secret."),
    ),
    CatalogCode.SHARE_OF_SEVERAL_NODES: Text(
        _("An accelerator share cannot span several nodes."),
        _("Choose whole accelerators, or set the number of nodes to 1."),
    ),
    CatalogCode.SIGN_NOT_ALLOWED: Text(
        _("“%(field)s” contains a control character."), _("Remove control characters.")
    ),
    CatalogCode.SLUG_OF_OTHER_TEAM: Text(
        _("Slugs with an underscore are reserved for team templates."),
        _("Choose a slug without underscores."),
    ),
    CatalogCode.SLUG_TAKEN: Text(_("Slug “%(slug)s” already in use."), _("Choose another slug.")),
    CatalogCode.SUCCESSOR_CIRCLE: Text(
        _("“%(slug)s” would become its own successor."), _("Choose another successor.")
    ),
    CatalogCode.TEAM_FIELD_FIXED: Text(_("“%(field)s” cannot be set in team templates."), _("Remove it.")),
    CatalogCode.TEMPLATE_NOT_FOR_TEAM: Text(
        _("“%(template)s” is not available to team %(team)s."), _("Choose another template or team.")
    ),
    # The next action is the template's own text, written by operators.
    CatalogCode.TEMPLATE_UNAVAILABLE: Text(
        _("%(program)s is not installed on any node."), "%(install_hint)s"
    ),
    CatalogCode.TOKEN_IN_ARGV: Text(
        _("The command contains the app token, which every process on the node can read."),
        _("Pass the token by {token_file} or an environment variable."),
    ),
    CatalogCode.TOKEN_UNUSED: Text(
        _("The app does not check a token, so other workspaces on its network can reach it."),
        _("Configure the app to require {token} or the contents of {token_file}."),
    ),
    CatalogCode.TOO_LARGE: Text(_("“%(field)s” is longer than %(most)s characters."), _("Shorten it.")),
    CatalogCode.LIFETIME_TOO_SHORT: Text(
        _("A workspace must run for at least 1 minute."), _("Enter a longer lifetime.")
    ),
    CatalogCode.LIFETIME_TOO_LONG: Text(
        _("The lifetime of %(asked_s)s exceeds the limit of %(max_s)s for this flavor."),
        _("Enter a shorter lifetime, and extend the workspace while it runs."),
        durations,
    ),
}
