"""Previews of templates and flavors, saved or drafts."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.catalog.models import Flavor, Template
from portal.catalog.policies import require_use
from portal.common.errors import NotAllowed
from portal.common.reasons.wording import message_of
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import may_view_team
from portal.people.accounts.selectors import team_by_slug
from portal.scheduling import admission, fits
from portal.scheduling.verdicts import Verdict
from portal.web.catalog import prices
from portal.workspaces import egress, software


@dataclass(frozen=True, slots=True)
class Preview:
    """The pools that a flavor fits, its price, and the verdict for a team.

    `verdict` is `None` without a template and a team. `refusal` is the reason why the team may not use it.
    `network` is the maximum egress by template and team; pools and nodes may allow less. `devices` says
    whether the flavor has accelerators.
    """

    fits: fits.FlavorFit
    price: tuple[float, float]
    team: Team | None = None
    verdict: Verdict | None = None
    refusal: str = ""
    network: str = ""
    devices: bool = False

    @property
    def price_text(self) -> str:
        return prices.format_price(self.price)

    @property
    def sentence(self) -> str:
        """The result in one sentence, for the team if there is one."""
        nodes = self.fits.nodes_now
        where = ngettext("on %(nodes)s node", "on %(nodes)s nodes", nodes) % {"nodes": nodes}
        if self.refusal:
            return self.refusal
        if self.verdict is not None and self.team is not None:
            if self.verdict.starts_now and not self.verdict.at_engine:
                return _("For %(team)s: starts now, %(where)s.") % {"team": self.team.name, "where": where}
            return _("For %(team)s: %(message)s") % {"team": self.team.name, "message": self.verdict.message}
        if nodes:
            return _("Can start now, %(where)s.") % {"where": where}
        ever = self.fits.nodes_ever
        if ever:
            text = ngettext(
                "No capacity now; %(nodes)s node is suitable.",
                "No capacity now; %(nodes)s nodes are suitable.",
                ever,
            )
            return text % {"nodes": ever}
        return _("No node is suitable.")


def preview(
    actor: User, flavor: Flavor, template: Template | None = None, team: Team | None = None
) -> Preview:
    """Return a preview, with the code that also creates workspaces. Nothing is stored.

    Raises `NotAllowed` if the actor may not see the team.
    """
    runs_in = software.default_of(template, team or template.team).digest if template is not None else ""
    fit = fits.fit_flavor(flavor, template, environment=runs_in)
    price, takes = prices.hourly(fit.charges), flavor.accelerator_count > 0
    if team is None or template is None:
        return Preview(fit, price, devices=takes)
    if not may_view_team(actor, team):
        team = team_by_slug(actor, team.slug)
    try:
        if template.pk is not None and not template._state.adding and not flavor._state.adding:
            require_use(team, template, flavor)
    except NotAllowed as refused:
        return Preview(fit, price, team, None, message_of(refused.reason), devices=takes)
    # Check only the team's limits, because later users have other caps than the actor.
    verdict = admission.assess(template=template, flavor=flavor, team=team, environment=runs_in)
    network = egress.limits_sentence(egress.limits_of(template, team))
    return Preview(fit, price, team, verdict, network=network, devices=takes)
