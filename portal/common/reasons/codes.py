"""Every code that a `Reason` may have, one enumeration for each subject; `wording` has its text."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """Which rule keeps a request waiting, or refuses it."""

    USER_CAP = "user_cap"
    TEAM_LIMIT = "team_limit"
    COHORT = "cohort"
    SITE_LIMIT = "site_limit"
    LEDGER = "ledger"
    CAPACITY = "capacity"
    BOOKING = "booking"
    PLACEMENT = "placement"
    ORDER = "order"


class PlacementCode(StrEnum):
    """Why a node or device does not take a request."""


class AdmissionCode(StrEnum):
    """What would become of a request, and what it waits for."""


class WaitBasis(StrEnum):
    """What an expected start rests on."""


class PreemptionCode(StrEnum):
    """Why a workspace has to make room."""


class CommonCode(StrEnum):
    """Refusals that any room may make."""


class AccountCode(StrEnum):
    """Refusals about people, teams and tokens."""


class InventoryCode(StrEnum):
    """Refusals about pools, nodes and devices."""


class CatalogCode(StrEnum):
    """Refusals about templates and flavors."""


class WorkspaceCode(StrEnum):
    """Refusals about workspaces, and why they failed."""


class CheckCode(StrEnum):
    """Refusals about GPU checks, and what came of them."""


class QuotaCode(StrEnum):
    """Refusals about limits."""


class LedgerCode(StrEnum):
    """Refusals about GPU-hours."""


class ReservationCode(StrEnum):
    """Refusals about reservations."""


class RequestCode(StrEnum):
    """Refusals about requests for more."""
