"""Serializers of requests for new and changed workspaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.request import Request

from portal.catalog import selectors as catalog
from portal.catalog.models import MAX_LIFETIME_H
from portal.common.api import StrictSerializer, UserRequest
from portal.common.hours import HoursField
from portal.common.scopes import Scope
from portal.people.accounts.authentication import require_scope
from portal.people.accounts.models import ApiToken, Team
from portal.workspaces import software
from portal.workspaces.order import (
    MAX_EXPECTED_S,
    MAX_FLAVORS,
    MAX_PRIORITY,
    MAX_START_WITHIN_S,
    MIN_EXPECTED_S,
    WorkspaceOrder,
)


class GitSerializer(StrictSerializer):
    """A repository that a workspace clones at start."""

    url = serializers.CharField(
        max_length=500,
        allow_blank=True,
        help_text=(
            "URL of the repository: `https://host/path`, `ssh://git@host/path` or `git@host:path`; empty "
            "for none."
        ),
    )
    ref = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=200,
        default="",
        help_text="Branch, tag or commit. Default: the default branch of the repository.",
    )
    secret = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=64,
        default="",
        help_text="Name of the secret with the credentials: a token for HTTPS, a private key for SSH.",
    )


def _expected_hours(help_text: str) -> HoursField:
    return HoursField(
        source="expected_s",
        required=False,
        min_value=MIN_EXPECTED_S / 3600,
        max_value=MAX_EXPECTED_S // 3600,
        help_text=help_text,
    )


def _priority(**more: Any) -> serializers.IntegerField:
    return serializers.IntegerField(required=False, min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, **more)


class WorkspaceShapeSerializer(StrictSerializer):
    """The fields that determine where a workspace fits. References are slugs."""

    template = serializers.CharField(max_length=81)
    flavor = serializers.CharField(
        max_length=60, required=False, help_text="Slug of the flavor. Required without `flavors`."
    )
    flavors = serializers.ListField(
        child=serializers.CharField(max_length=60),
        required=False,
        min_length=1,
        max_length=MAX_FLAVORS,
        help_text=(
            "Slugs of flavors in order of preference, instead of `flavor`. It starts on the first that is "
            "free, else it waits for any of them."
        ),
    )
    start_within_min = serializers.IntegerField(
        required=False,
        default=0,
        min_value=0,
        max_value=MAX_START_WITHIN_S // 60,
        help_text=(
            "How many minutes it waits for an earlier flavor of `flavors` while a later one is free, if the "
            "earlier one is expected to be free by then."
        ),
    )
    expected_hours = _expected_hours(
        "Expected duration in hours. Optional. Shorter workspaces may start sooner."
    )
    environment = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=40,
        help_text="Slug of the software environment. Default: the template's.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the body with the first flavor as `flavor`, and all of them as `flavors`."""
        if "flavor" in attrs and "flavors" in attrs:
            raise serializers.ValidationError({"flavors": [_("Use either flavor or flavors.")]})
        slugs = attrs.get("flavors") or ([attrs["flavor"]] if "flavor" in attrs else [])
        if not slugs:
            raise serializers.ValidationError({"flavor": [self.fields["flavor"].error_messages["required"]]})
        return {**attrs, "flavor": slugs[0], "flavors": slugs}


class WorkspaceStartSerializer(WorkspaceShapeSerializer):
    """The team that is charged, and the options for starting without a wait."""

    team = serializers.CharField(required=False, max_length=40, help_text="Optional if you have one team.")
    start_without_gpu = serializers.BooleanField(
        required=False,
        default=False,
        help_text=(
            "Whether to start without accelerators if the workspace would otherwise wait, and can "
            "start immediately without them. `attach-gpu` adds them later. The owner gets one notice "
            "when they are free."
        ),
    )
    move_home = serializers.BooleanField(
        required=False,
        default=False,
        help_text=(
            "Whether your home folder may move to another machine with a start, regardless of its size. "
            "Smaller ones do so without it."
        ),
    )


class WorkspaceOrderSerializer(WorkspaceShapeSerializer):
    """A new workspace for a team named elsewhere. References are slugs."""

    name = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=60,
        help_text="Name: lower-case letters, digits and hyphens. Default: a generated name.",
    )
    lifetime_hours = HoursField(
        source="lifetime_s",
        required=False,
        min_value=1 / 60,
        max_value=MAX_LIFETIME_H,
        help_text="Lifetime in hours, within the limits of flavor and site. Default: their default.",
    )
    checkpointed = serializers.BooleanField(
        required=False,
        allow_null=True,
        default=None,
        help_text=(
            "Whether its work continues from a checkpoint after a preemption. Default: the setting of "
            "template and flavor."
        ),
    )
    secrets = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=50,
        default=list,
        help_text=(
            "Names of additional secrets, of yours or the team. Secrets with `everywhere` and secrets of "
            "the template are always included."
        ),
    )
    git = GitSerializer(
        required=False,
        allow_null=True,
        default=None,
        help_text="Repository to clone. Default: the repository of the template.",
    )


class WorkspaceCreateSerializer(WorkspaceOrderSerializer, WorkspaceStartSerializer):
    """A request for a workspace. References are slugs."""

    priority = _priority(
        default=0,
        help_text=(
            "Priority in the queue: higher values go first. Only owners of the team and operators can set it "
            "above 0."
        ),
    )
    keep_after_job = serializers.BooleanField(
        required=False,
        default=False,
        help_text=(
            "Whether to keep it after the CI job that creates it has ended. By default, the portal "
            "deletes it once the job's token has expired. No effect for other tokens and sessions."
        ),
    )


class WorkspaceChangeSerializer(StrictSerializer):
    """Changes of a workspace. Omitted fields stay unchanged."""

    name = serializers.CharField(
        required=False,
        max_length=60,
        help_text=(
            "Name: lower-case letters, digits and hyphens. Can be changed while the workspace is queued, "
            "stopped or failed."
        ),
    )
    expected_hours = _expected_hours(
        "Expected duration in hours, from the start. To move the end of a running workspace, extend it."
    )
    priority = _priority(
        help_text=(
            "Priority in the queue: higher values go first. Only owners of the team and operators can set it "
            "above 0."
        )
    )


class ExtendSerializer(StrictSerializer):
    """The hours by which to extend a workspace."""

    hours = HoursField(
        source="seconds", min_value=1 / 60, max_value=MAX_LIFETIME_H, help_text="Hours to add."
    )

    examples = {"hours": 4}


class ResizeSerializer(StrictSerializer):
    """The new flavor of a workspace."""

    flavor = serializers.CharField(max_length=60, help_text="Slug of the flavor.")


def start_of(request: Request) -> dict[str, Any]:
    """Return the body of a request for a workspace without its team, as `start` of a quota request."""
    body: Any = request.data
    return {name: value for name, value in body.items() if name != "team"}


def order_of(request: UserRequest, team: Team, body: Mapping[str, Any]) -> WorkspaceOrder:
    """Return the order for the validated body of a `WorkspaceCreateSerializer`, including `bound_to`.

    Raises `NotFound`, `InvalidInput`, and `PermissionDenied` for a token that may not name a secret.
    """
    return WorkspaceOrder(
        team=team,
        template=catalog.template_by_slug(request.user, body["template"]),
        flavor=catalog.flavor_by_slug(request.user, body["flavor"]),
        fallbacks=[catalog.flavor_by_slug(request.user, slug) for slug in body["flavors"][1:]],
        start_within_s=body["start_within_min"] * 60,
        name=body.get("name", ""),
        expected_s=body.get("expected_s"),
        lifetime_s=body.get("lifetime_s"),
        priority=body.get("priority", 0),
        checkpointed=body["checkpointed"],
        environment=software.find_environment(request.user, body.get("environment", "")),
        secrets=body["secrets"],
        git=_git_of(request, body),
        start_without_gpu=body.get("start_without_gpu", False),
        move_home=body.get("move_home", False),
        bound_to=_bound_to(request, body),
    )


def _bound_to(request: UserRequest, body: Mapping[str, Any]) -> UUID | None:
    """Return the id of the job token with which the workspace ends, or `None`."""
    token = request.auth
    if not isinstance(token, ApiToken) or not token.is_job_token or body["keep_after_job"]:
        return None
    return token.pk


def _git_of(request: Request, body: Mapping[str, Any]) -> Any:
    """Return the repository of a request, or `None`. Raises `PermissionDenied`.

    The workspace sends the secret to the repository's server. A token therefore needs the right to open
    workspaces, where it could read the secret as well.
    """
    git = body["git"]
    if git is not None and git["secret"]:
        require_scope(request, Scope.WORKSPACES_CONNECT)
    return git
