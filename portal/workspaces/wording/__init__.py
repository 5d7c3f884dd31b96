"""Texts of the reasons about workspaces."""

from __future__ import annotations

from portal.workspaces.wording import checkouts, efficiency, extending, shares, workspaces

TEXTS = {**workspaces.TEXTS, **checkouts.TEXTS, **extending.TEXTS, **efficiency.TEXTS, **shares.TEXTS}
