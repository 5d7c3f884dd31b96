"""Texts of the refusals of workspaces."""

from __future__ import annotations

from portal.workspaces.wording import checkouts, shares, workspaces

TEXTS = {**workspaces.TEXTS, **checkouts.TEXTS, **shares.TEXTS}
