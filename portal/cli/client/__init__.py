"""Client of the REST API with one object per resource. The command line uses it.

Does not import Django.
"""

from __future__ import annotations

from typing import Any

import httpx

from portal.cli.client.admission import Admission
from portal.cli.client.announcements import Announcements
from portal.cli.client.archives import Archives
from portal.cli.client.budgets import Budgets
from portal.cli.client.environments import Environments
from portal.cli.client.events import Events
from portal.cli.client.files import Files
from portal.cli.client.flavors import Flavors
from portal.cli.client.gpu_checks import GpuChecks
from portal.cli.client.home_evacuations import HomeEvacuations
from portal.cli.client.homes import Homes
from portal.cli.client.maintenance import Maintenance
from portal.cli.client.nodes import Nodes
from portal.cli.client.orphans import Orphans
from portal.cli.client.packages import Packages
from portal.cli.client.queue import Queue
from portal.cli.client.quota_requests import QuotaRequests
from portal.cli.client.quotas import Quotas
from portal.cli.client.rebalance_proposals import RebalanceProposals
from portal.cli.client.secrets import Secrets
from portal.cli.client.service_accounts import ServiceAccounts
from portal.cli.client.site import Site
from portal.cli.client.teams import Teams
from portal.cli.client.templates import Templates
from portal.cli.client.tokens import Tokens
from portal.cli.client.transport import Transport
from portal.cli.client.users import Users
from portal.cli.client.workspaces import Workspaces

__all__ = ["BerthClient"]


class BerthClient:
    """The portal at `base_url`, as the user of `token`. Use it in a `with` statement, or close it.

    Every method of a resource raises `NotSignedIn` (invalid token), `Missing` (404), `RequestRejected` (any
    other refusal, with the portal's message) or `Unreachable` (no response, or one that is not from a
    portal).
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._transport = Transport(base_url, token, timeout_s=timeout_s, transport=transport)
        self.admission = Admission(self._transport)
        self.announcements = Announcements(self._transport)
        self.archives = Archives(self._transport)
        self.budgets = Budgets(self._transport)
        self.environments = Environments(self._transport)
        self.events = Events(self._transport)
        self.files = Files(self._transport)
        self.flavors = Flavors(self._transport)
        self.gpu_checks = GpuChecks(self._transport)
        self.home_evacuations = HomeEvacuations(self._transport)
        self.homes = Homes(self._transport)
        self.maintenance = Maintenance(self._transport)
        self.nodes = Nodes(self._transport)
        self.orphans = Orphans(self._transport)
        self.packages = Packages(self._transport)
        self.queue = Queue(self._transport)
        self.quota_requests = QuotaRequests(self._transport)
        self.quotas = Quotas(self._transport)
        self.rebalance_proposals = RebalanceProposals(self._transport)
        self.secrets = Secrets(self._transport)
        self.service_accounts = ServiceAccounts(self._transport)
        self.site = Site(self._transport)
        self.teams = Teams(self._transport)
        self.templates = Templates(self._transport)
        self.tokens = Tokens(self._transport)
        self.users = Users(self._transport)
        self.workspaces = Workspaces(self._transport)

    @property
    def base_url(self) -> str:
        """URL of the portal, without a trailing slash."""
        return self._transport.base_url

    def close(self) -> None:
        """Close open connections."""
        self._transport.close()

    def __enter__(self) -> BerthClient:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
