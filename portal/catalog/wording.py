"""Texts of errors and warnings about templates and flavors."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.catalog.codes import CatalogCode
from portal.common.reasons.wording import Text, durations, listed

TEXTS: dict[StrEnum, Text] = {
    CatalogCode.ACCELERATOR_NEEDED: Text(
        _("Without accelerators there is no model, profile or share of one."),
        _("Ask for at least one accelerator, or leave these empty."),
    ),
    CatalogCode.ARGV_INVALID: Text(
        _("The command is a list of 1 to %(most)s arguments, each a text."),
        _("Begin with the program, and give each argument for itself."),
    ),
    CatalogCode.ENTRY_DEPRECATED: Text(_("“%(name)s” is deprecated."), _("Choose another one.")),
    CatalogCode.ENTRY_GONE: Text(_("“%(name)s” has been deleted meanwhile."), _("Look at the list again.")),
    CatalogCode.ENTRY_HAS_SUCCESSOR: Text(
        _("“%(name)s” is deprecated."), _("Choose “%(successor)s” instead.")
    ),
    CatalogCode.ENTRY_NOT_VALID: Text(_("It cannot be kept like this."), _("Correct what is marked.")),
    CatalogCode.ENV_INVALID: Text(
        _("Environment variables are at most %(most)s names with a text each."), _("Correct them.")
    ),
    CatalogCode.ENV_NAME_INVALID: Text(
        _("“%(name)s” is no name of an environment variable."),
        _("Use letters, digits and underscores; begin with a letter or an underscore."),
    ),
    CatalogCode.ENV_NAME_RESERVED: Text(
        _("“%(name)s” is set by Berth and by nobody else."), _("Leave it out.")
    ),
    CatalogCode.FIELD_FIXED: Text(
        _("“%(field)s” stays as it was given at first."), _("Make another entry, and delete this one.")
    ),
    CatalogCode.FLAVOR_NOT_FOR_TEAM: Text(
        _("“%(flavor)s” is not for the team %(team)s."), _("Choose another size, or another team.")
    ),
    CatalogCode.MIG_TAKES_WHOLE_INSTANCES: Text(
        _("A MIG instance is asked for whole and without a model."), _("Leave share and models empty.")
    ),
    CatalogCode.MODEL_OR_MODELS: Text(
        _("Name one model, or several, not both."), _("Move the one to the others.")
    ),
    CatalogCode.MODELS_INVALID: Text(
        _("Models are a list of at most %(most)s names."), _("Name each model as the map of GPUs does.")
    ),
    CatalogCode.MOUNTS_INVALID: Text(
        _("Folders are a list of at most %(most)s names, each once."),
        _("Name them as nodes list them in BERTH_MOUNTS, like imagenet, or scratch:rw to write there."),
    ),
    CatalogCode.NO_SUCH_FLAVOR: Text(
        _("There is no flavor “%(slug)s”."), _("Choose one of: %(known)s."), prepare=listed("known")
    ),
    CatalogCode.NO_SUCH_ICON: Text(
        _("There is no icon “%(icon)s”."), _("Choose one of: %(known)s."), prepare=listed("known")
    ),
    CatalogCode.NO_SUCH_SUCCESSOR: Text(
        _("There is no “%(slug)s” that could take its place."), _("Name one that its users may use, too.")
    ),
    CatalogCode.NO_SUCH_TEAM_NAMED: Text(_("There is no team “%(slug)s”."), _("Name one that there is.")),
    CatalogCode.NO_SUCH_POOL_NAMED: Text(_("There is no pool “%(slug)s”."), _("Name one that there is.")),
    CatalogCode.NO_SUCH_TEMPLATE: Text(
        _("There is no template “%(slug)s”."), _("Choose one of: %(known)s."), prepare=listed("known")
    ),
    CatalogCode.EGRESS_INVALID: Text(
        _("This is neither a list of hosts nor of networks."),
        _(
            "Write them like packages.example, *.example.org, git.example.org:22 or 10.1.0.0/16, with commas "
            "between."
        ),
    ),
    CatalogCode.PATH_INVALID: Text(
        _("“%(path)s” is no path of the app."), _("Begin with one “/”, and leave out host and spaces.")
    ),
    CatalogCode.PLACEHOLDER_UNKNOWN: Text(
        _("“{%(name)s}” is replaced by nothing."), _("Known are: %(known)s."), prepare=listed("known")
    ),
    CatalogCode.PORT_MISSING: Text(
        _("Nothing says on which port the program listens."),
        _("Put {port} into the command or into an environment variable."),
    ),
    CatalogCode.SECRET_FOUND: Text(
        _("“%(where)s” holds a secret, which everybody could read who may use the template."),
        _("Take it out, and revoke it where it was made."),
    ),
    CatalogCode.SECRET_LIKELY: Text(
        _("“%(where)s” looks like a secret. Everybody who may use the template can read it."),
        _("Take it out if it is one."),
    ),
    CatalogCode.SHARE_OF_SEVERAL_NODES: Text(
        _("A share of an accelerator is on one node."), _("Ask for whole ones, or for one node.")
    ),
    CatalogCode.SIGN_NOT_ALLOWED: Text(
        _("“%(field)s” has a sign that cannot be shown."), _("Take out control signs.")
    ),
    CatalogCode.SLUG_OF_OTHER_TEAM: Text(
        _("Short names with an underscore are those of teams' own templates."), _("Choose another one.")
    ),
    CatalogCode.SLUG_TAKEN: Text(_("The short name “%(slug)s” is taken."), _("Choose another one.")),
    CatalogCode.SUCCESSOR_CIRCLE: Text(
        _("“%(slug)s” would in the end be its own successor."), _("Name another one.")
    ),
    CatalogCode.TEAM_FIELD_FIXED: Text(
        _("“%(field)s” is not for templates that are a team's own."), _("Leave it out.")
    ),
    CatalogCode.TEMPLATE_NOT_FOR_TEAM: Text(
        _("“%(template)s” is not for the team %(team)s."), _("Choose another template, or another team.")
    ),
    # The next action is the template's own text, written by operators.
    CatalogCode.TEMPLATE_UNAVAILABLE: Text(_("Needs %(program)s, which no node has."), "%(install_hint)s"),
    CatalogCode.TOKEN_IN_ARGV: Text(
        _("The command contains the app's token, which every process of the machine can read."),
        _("Use {token_file}, or an environment variable."),
    ),
    CatalogCode.TOKEN_UNUSED: Text(
        _("The app is not given its token: where workspaces share a network, others can reach it."),
        _("Have it demand {token}, or the contents of {token_file}."),
    ),
    CatalogCode.TOO_LARGE: Text(_("“%(field)s” is longer than %(most)s signs."), _("Make it shorter.")),
    CatalogCode.LIFETIME_TOO_SHORT: Text(
        _("A workspace lives for a minute at least."), _("Ask for more hours.")
    ),
    CatalogCode.LIFETIME_TOO_LONG: Text(
        _("Workspaces of this size live for %(max_s)s at most; %(asked_s)s were asked for."),
        _("Ask for less, and extend it while it runs."),
        durations,
    ),
}
