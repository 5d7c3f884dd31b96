"""Pages in the menu, in groups, depending on the user's permissions. The search finds the same pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.catalog import selectors as catalog
from portal.people.accounts.models import Role, User
from portal.workspaces.policies import may_see_others

Text = str | Promise


def everybody(_user: User) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the menu.

    `url` and `current` are view names; the page is marked as current in each view of `current`. `keywords`
    are further search terms.
    """

    url: str
    label: Text
    icon: str
    current: tuple[str, ...] = ()
    keywords: str = ""
    shown: Callable[[User], bool] = everybody

    def is_current(self, view_name: str) -> bool:
        return view_name == self.url or view_name in self.current


@dataclass(frozen=True, slots=True)
class Group:
    """A titled group of pages."""

    title: Text
    pages: tuple[Page, ...]


def may_start(user: User) -> bool:
    """Return whether the user can start workspaces in any team."""
    return not user.only_views


def sees_all(user: User) -> bool:
    return user.sees_all


def sees_people(user: User) -> bool:
    return user.sees_people


def manages_team_templates_only(user: User) -> bool:
    """Return whether the user manages only team templates. The catalog is then in the team's group."""
    return not user.sees_all and Role.OWNER in user.team_roles


def works_with_gpus(user: User) -> bool:
    """Return whether the user sees GPU states: because of a flavor with GPUs, or the right to see all."""
    return user.sees_all or catalog.flavors_for(user).filter(accelerator_count__gt=0).exists()


def _catalog(shown: Callable[[User], bool]) -> Page:
    return Page(
        "catalog_pages:templates",
        _("Catalog"),
        "book-2",
        (
            *(f"catalog_pages:{name}" for name in ("template", "flavors", "flavor")),
            *(f"reclaim:{name}" for name in ("policies", "policy", "new-policy", "edit-policy")),
        ),
        "templates flavors policies sizes",
        shown,
    )


GROUPS = (
    Group(
        _("Work"),
        (
            Page(
                "home:overview",
                _("Overview"),
                "layout-dashboard",
                keywords="dashboard site health",
                shown=sees_all,
            ),
            Page(
                "home:home",
                _("Workspaces"),
                "home",
                tuple(f"workspaces:{name}" for name in ("detail", "delete", "stop", "logs", "use")),
                "home start",
            ),
            Page(
                "workspace_list:list",
                _("All workspaces"),
                "notebook",
                ("workspace_list:act",),
                "table everybody team stop extend message export csv",
                may_see_others,
            ),
            Page("home:new", _("New workspace"), "plus", keywords="create start notebook", shown=may_start),
            Page(
                "environments:list",
                _("Environments"),
                "box",
                tuple(f"environments:{name}" for name in ("detail", "new", "edit", "build", "delete")),
                "packages software python images",
            ),
            Page(
                "workspaces:homes",
                _("Files"),
                "file-text",
                ("home_files:list", "home_files:archives"),
                "home folders archives upload download",
            ),
        ),
    ),
    Group(
        _("Team"),
        (
            Page(
                "accounts:teams",
                _("Teams"),
                "users",
                (
                    *(
                        "home:team",
                        "home:team-use",
                        "accounts:team-invite",
                        "join_requests:teams",
                        "join_requests:ask",
                        "join_requests:request",
                    ),
                    *("service_accounts:list", "service_accounts:account", "service_accounts:trust-rules"),
                    *("webhooks:team", "channels:team"),
                ),
                "members quota ledger join",
            ),
            Page(
                "inbox:inbox",
                _("Inbox"),
                "inbox",
                tuple(f"quota_requests:{name}" for name in ("approvals", "request", "rules", "ask")),
                "approvals requests decide",
            ),
            _catalog(manages_team_templates_only),
        ),
    ),
    Group(
        _("Capacity"),
        (
            Page("scheduling:queue", _("Queue"), "hourglass", keywords="waiting position"),
            Page(
                "fleet:gpus",
                _("GPUs"),
                "cpu-2",
                (
                    *(
                        f"fleet:{name}"
                        for name in ("device", "node", "node-use", "drain-device", "drain-node")
                    ),
                    *("fleet:device-use", "gpu_checks:check"),
                ),
                "map devices nodes checks health",
                works_with_gpus,
            ),
            Page("reservations:calendar", _("Calendar"), "clock", (), "reservations", works_with_gpus),
            Page(
                "fleet:pools",
                _("Pools"),
                "server-2",
                ("fleet:pool", "fleet:pool-use", "fleet:pool-maintenance"),
                "machines nodes join",
                sees_all,
            ),
        ),
    ),
    Group(
        _("Administration"),
        (
            _catalog(sees_all),
            Page(
                "quotas:matrix", _("Quotas"), "stack-2", ("quotas:limits",), "limits shares cohorts", sees_all
            ),
            Page("reports:gpu-use", _("Reports"), "history", (), "use idle costs", sees_all),
            Page(
                "announcements:list",
                _("Announcements"),
                "info-circle",
                ("announcements:edit", "announcements:delete", "fleet:maintenance"),
                "maintenance banner notice",
                sees_all,
            ),
            Page("webhooks:site", _("Webhooks"), "bolt", ("webhooks:detail",), "", sees_all),
            Page(
                "accounts:users",
                _("Users"),
                "user-circle",
                ("accounts:user", "identity:providers", "identity:provider"),
                "people accounts invite sign-in",
                sees_people,
            ),
            Page("events:audit", _("Audit log"), "history", (), "events who did what", sees_people),
        ),
    ),
)
ACCOUNT = (
    Page(
        "accounts:account",
        _("Account"),
        "settings",
        ("channels:own", "channels:detail"),
        "settings password passkeys sessions notices ssh keys dotfiles",
    ),
    Page("ledger:own-use", _("Your GPU-hours"), "clock", (), "use usage costs week"),
    Page("accounts:tokens", _("Tokens"), "key", ("accounts:site-tokens",), "api rest cli secret"),
    Page(
        "documents:overview",
        _("Documentation"),
        "book-2",
        tuple(f"documents:{name}" for name in ("search", "page", "decisions", "decision")),
        "help docs guide",
    ),
)
"""Pages of the account menu."""


_CONDITIONS = {page.shown for group in GROUPS for page in group.pages}


def groups_for(user: User) -> list[Group]:
    """Return the groups with the pages for the user, without empty groups."""
    # Cached, because several pages have the same condition, and some conditions cost a query.
    shown = {condition: condition(user) for condition in _CONDITIONS}
    groups = (
        Group(group.title, tuple(page for page in group.pages if shown[page.shown])) for group in GROUPS
    )
    return [group for group in groups if group.pages]


def pages_for(user: User) -> list[Page]:
    """Return all pages of the menu and of the account menu."""
    return [*(page for group in groups_for(user) for page in group.pages), *ACCOUNT]


def with_current(groups: list[Group], view_name: str) -> list[dict[str, Any]]:
    """Return the groups for the template, with pairs of a page and whether it is the current page."""
    return [
        {"title": group.title, "pages": [(page, page.is_current(view_name)) for page in group.pages]}
        for group in groups
    ]
