"""What the home page shows beside the cards of workspaces."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from portal.accounts.models import Team, User
from portal.catalog.models import Flavor, Template
from portal.scheduling import admission
from portal.workspaces import selectors


@dataclass(frozen=True, slots=True)
class LastChoice:
    """What was chosen last, and what would happen to it now."""

    template: Template
    flavor: Flavor
    team: Team
    verdict: admission.Verdict

    @property
    def verdict_line(self) -> str:
        if self.verdict.outcome is admission.Outcome.FITS_NOW:
            return _("What you chose last starts now.")
        return _("What you chose last would queue. %(why)s") % {"why": self.verdict.message}


def last_choice(actor: User) -> LastChoice | None:
    """The last choice, if it is still possible."""
    last = selectors.last_choice(actor)
    if last is None:
        return None
    verdict = admission.assess(template=last.template, flavor=last.flavor, team=last.team, actor=actor)
    return LastChoice(last.template, last.flavor, last.team, verdict) if verdict.possible else None
