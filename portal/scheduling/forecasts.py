"""Forecasts the starts of workspaces that are resized or attach their accelerators again."""

from __future__ import annotations

from collections.abc import Sequence

from portal.catalog.models import Flavor
from portal.scheduling import admission, offers
from portal.scheduling.verdicts import Verdict
from portal.workspaces.models import Workspace
from portal.workspaces.start_forecasts import StartForecasts


class AdmissionForecasts(StartForecasts):
    """Forecasts the current decision of admission."""

    def resized(self, workspace: Workspace, flavors: Sequence[Flavor]) -> list[tuple[Flavor, Verdict]]:
        shown = offers.shortlist([*flavors, workspace.flavor], workspace.flavor.slug)
        assessed = [flavor for flavor in shown if flavor != workspace.flavor]
        return list(zip(assessed, admission.assess_resize(workspace, assessed), strict=True))

    def attached(self, workspace: Workspace) -> Verdict:
        (verdict,) = admission.assess_attached([workspace])
        return verdict
