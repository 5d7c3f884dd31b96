"""Texts of the refusals about templates and flavors."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.codes import CatalogCode
from portal.common.reasons.wording import Text, listed

TEXTS: dict[StrEnum, Text] = {
    CatalogCode.NO_SUCH_FLAVOR: Text(
        _("There is no flavor “%(slug)s”."), _("Choose one of: %(known)s."), prepare=listed("known")
    ),
    CatalogCode.NO_SUCH_TEMPLATE: Text(
        _("There is no template “%(slug)s”."), _("Choose one of: %(known)s."), prepare=listed("known")
    ),
    # What to do about it is the template's own text, which operators write.
    CatalogCode.TEMPLATE_UNAVAILABLE: Text(_("Needs %(program)s, which no node has."), "%(install_hint)s"),
}
