"""Filters for workspace lists, shared by REST, the page and its export."""

from __future__ import annotations

from portal.common.api import filters
from portal.common.filtering import MomentFilter
from portal.workspaces import selectors
from portal.workspaces.lifecycle import State
from portal.workspaces.models import WorkspaceQuerySet

MAX_SEARCH_LENGTH = 100
"""Maximum length of a search text."""


class WorkspaceFilter(filters.FilterSet):
    """Filters the workspaces that the actor may see. Excludes deleted ones unless a state is selected."""

    state = filters.MultipleChoiceFilter(
        choices=State.choices, label="Only workspaces in these states. Default: all except `terminated`."
    )
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    template = filters.CharFilter(field_name="template__slug", label="Slug of the template.")
    flavor = filters.CharFilter(field_name="flavor__slug", label="Slug of the flavor.")
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool that runs it or ran it last.")
    owner = filters.CharFilter(field_name="owner__username", label="Username of the owner.")
    name = filters.CharFilter(label="Only the one with this name.")
    q = filters.CharFilter(
        method="filter_words",
        max_length=MAX_SEARCH_LENGTH,
        label="Words to search for in the names of workspace, template, flavor, team and owner.",
    )
    created_after = MomentFilter(
        field_name="created_at",
        lookup_expr="gte",
        label="Only workspaces created at or after this time (ISO 8601).",
    )
    created_before = MomentFilter(
        field_name="created_at",
        lookup_expr="lt",
        label="Only workspaces created before this time (ISO 8601).",
    )

    def filter_words(self, queryset: WorkspaceQuerySet, _name: str, value: str) -> WorkspaceQuerySet:
        return selectors.with_words(queryset, value)
