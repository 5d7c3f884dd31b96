"""Texts of the reasons about workspaces."""

from __future__ import annotations

from portal.workspaces.wording import checkouts, efficiency, extending, memory, shares, workspaces

TEXTS = {
    **workspaces.TEXTS,
    **checkouts.TEXTS,
    **extending.TEXTS,
    **efficiency.TEXTS,
    **memory.TEXTS,
    **shares.TEXTS,
}
