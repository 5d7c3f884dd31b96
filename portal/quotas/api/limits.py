"""Quotas, caps of members, and how teams stand, over REST."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiExample
from rest_framework.response import Response

from portal.accounts.models import Team, User
from portal.common.api import ApiView, ListView, UserRequest, filters, operation, routes
from portal.common.errors import InvalidInput, NotFound
from portal.common.scopes import Scope
from portal.common.texts import storable
from portal.quotas import policies
from portal.quotas.models import Cohort, MemberCap, Quota
from portal.quotas.selectors import limits as selectors
from portal.quotas.serializers import (
    MemberCapChangeSerializer,
    MemberCapCreateSerializer,
    MemberCapSerializer,
    MemberCapWrittenSerializer,
    QuotaChangeSerializer,
    QuotaCreateSerializer,
    QuotaSerializer,
    QuotaWrittenSerializer,
    UsageSerializer,
)
from portal.quotas.services import limits as services

SCOPES = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}


def body_of(request: UserRequest, serializer: type[Any]) -> dict[str, Any]:
    """The request's body, or the refusal of what is wrong with it."""
    body = serializer(data=request.data)
    body.is_valid(raise_exception=True)
    given: dict[str, Any] = body.validated_data
    return given


def named_team(slug: str) -> Team:
    """A team that the body names. Raises `InvalidInput`."""
    team = Team.objects.filter(slug=storable(slug)).first()
    if team is None:
        sentence = f"There is no team “{slug}”."
        raise InvalidInput(sentence, errors={"team": [sentence]})
    return team


def named_cohort(slug: str | None, field: str = "cohort") -> Cohort | None:
    """A cohort that the body names; None for none. Raises `InvalidInput`."""
    if slug is None:
        return None
    cohort = Cohort.objects.filter(slug=storable(slug)).first()
    if cohort is None:
        sentence = f"There is no cohort “{slug}”."
        raise InvalidInput(sentence, errors={field: [sentence]})
    return cohort


class QuotaFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Short name of the team.")
    cohort = filters.CharFilter(field_name="cohort__slug", label="Short name of the cohort.")
    resource = filters.CharFilter(label="Exactly this resource.")


class QuotaList(ListView):
    scopes = SCOPES
    serializer_class = QuotaSerializer
    filterset_class = QuotaFilter
    ordering = ("resource", "id")

    def get_queryset(self) -> QuerySet[Quota]:
        return Quota.objects.none() if self.documenting() else selectors.quotas_for(self.request.user)

    @operation(
        "List quotas",
        description="Those of your teams and of the cohorts they are in; all for operators and approvers.",
        responses={200: QuotaSerializer(many=True)},
        errors=[400],
    )
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Give a team or a cohort a quota",
        description="For operators. Amounts are in base units: 4 GPUs are 4000.",
        request=QuotaCreateSerializer,
        responses={201: QuotaWrittenSerializer},
        errors=[400, 409, 415],
        examples=[
            OpenApiExample(
                "Four H100 for a team that may borrow two more",
                {"team": "vision", "resource": "gpu:h100", "nominal": 4000, "borrowing_limit": 2000},
                request_only=True,
            ),
            OpenApiExample(
                "64 GiB memory for all of a cohort",
                {"cohort": "research", "resource": "memory_mib", "nominal": 65536},
                request_only=True,
            ),
        ],
    )
    def post(self, request: UserRequest) -> Response:
        policies.require_set_limits(request.user)
        given = body_of(request, QuotaCreateSerializer)
        team = named_team(given["team"]) if given.get("team") else None
        cohort = named_cohort(given.get("cohort"))
        done = services.set_quota(
            actor=request.user,
            team=team,
            cohort=cohort,
            resource=given["resource"],
            nominal=given["nominal"],
            borrowing_limit=given["borrowing_limit"],
            lending_limit=given["lending_limit"],
            only_new=True,
        )
        resource = services.clean_resource(given["resource"])
        quota = Quota.objects.select_related("team", "cohort").get(
            team=team, cohort=cohort, resource=resource
        )
        location = reverse("api:quota", args=[quota.pk])
        return Response(_written(quota, done), status=201, headers={"Location": location})


def _written(quota: Quota, done: services.Changed) -> Any:
    quota.notes = list(done.notes)  # type: ignore[attr-defined]
    return QuotaWrittenSerializer(quota).data


def _quota(actor: User, quota_id: UUID) -> Quota:
    quota = selectors.quotas_for(actor).filter(pk=quota_id).first()
    if quota is None:
        raise NotFound("There is no such quota.", next_action="Look at the list of quotas.")
    return quota


class QuotaDetail(ApiView):
    scopes = SCOPES

    @operation("Read a quota", responses={200: QuotaSerializer}, errors=[404])
    def get(self, request: UserRequest, quota_id: UUID) -> Response:
        return Response(QuotaSerializer(_quota(request.user, quota_id)).data)

    @operation(
        "Change a quota",
        description="For operators. A quota below use stops nobody; `notes` say what is over.",
        request=QuotaChangeSerializer,
        responses={200: QuotaWrittenSerializer},
        errors=[400, 404, 415],
        examples=[
            OpenApiExample(
                "Two H100, nothing borrowed, half of one lent",
                {"nominal": 2000, "borrowing_limit": 0, "lending_limit": 500},
                request_only=True,
            )
        ],
    )
    def put(self, request: UserRequest, quota_id: UUID) -> Response:
        quota = _quota(request.user, quota_id)
        policies.require_set_limits(request.user)
        done = services.set_quota(
            actor=request.user,
            team=quota.team,
            cohort=quota.cohort,
            resource=quota.resource,
            **body_of(request, QuotaChangeSerializer),
        )
        return Response(_written(_quota(request.user, quota_id), done))

    @operation(
        "Take a quota away",
        description="For operators. What no quota names is not limited by quota.",
        responses={204: None},
        errors=[404],
    )
    def delete(self, request: UserRequest, quota_id: UUID) -> Response:
        quota = _quota(request.user, quota_id)
        services.remove_quota(
            actor=request.user, team=quota.team, cohort=quota.cohort, resource=quota.resource
        )
        return Response(status=204)


class TeamUsage(ApiView):
    scopes = SCOPES

    @operation(
        "How a team stands",
        description="What it uses, waits for, borrows and may have, by resource.",
        responses={200: UsageSerializer},
        errors=[404],
    )
    def get(self, request: UserRequest, slug: str) -> Response:
        team = selectors.team_for(request.user, slug)
        bars = selectors.bars_for(team, request.user)
        return Response(UsageSerializer({"team": team.slug, "resources": bars}).data)


class CapFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Short name of the team.")
    user = filters.CharFilter(field_name="user__username", label="Name of the member.")
    resource = filters.CharFilter(label="Exactly this resource.")


class CapList(ListView):
    scopes = SCOPES
    serializer_class = MemberCapSerializer
    filterset_class = CapFilter
    ordering = ("resource", "id")

    def get_queryset(self) -> QuerySet[MemberCap]:
        return MemberCap.objects.none() if self.documenting() else selectors.caps_for(self.request.user)

    @operation(
        "List caps of members",
        description="Of your teams; all for operators and approvers.",
        responses={200: MemberCapSerializer(many=True)},
        errors=[400],
    )
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Cap what a member may hold",
        description="For owners of the team and operators.",
        request=MemberCapCreateSerializer,
        responses={201: MemberCapWrittenSerializer},
        errors=[400, 409, 415],
        examples=[
            OpenApiExample(
                "Two GPUs of any model for each member",
                {"team": "vision", "resource": "gpu", "amount": 2000},
                request_only=True,
            )
        ],
    )
    def post(self, request: UserRequest) -> Response:
        given = body_of(request, MemberCapCreateSerializer)
        try:
            team = selectors.team_for(request.user, given["team"])
        except NotFound as error:
            raise InvalidInput(error.message, errors={"team": [error.message]}) from None
        policies.require_split(request.user, team)
        user = None
        if given["user"] is not None:
            user = User.objects.filter(username=storable(given["user"]).strip().lower()).first()
            if user is None:
                sentence = f"{given['user']} is not in {team.name}."
                raise InvalidInput(sentence, errors={"user": [sentence]})
        done = services.set_member_cap(
            actor=request.user,
            team=team,
            user=user,
            resource=given["resource"],
            amount=given["amount"],
            only_new=True,
        )
        resource = services.clean_resource(given["resource"])
        cap = MemberCap.objects.select_related("team", "user").get(team=team, user=user, resource=resource)
        location = reverse("api:member-cap", args=[cap.pk])
        return Response(_written_cap(cap, done), status=201, headers={"Location": location})


def _written_cap(cap: MemberCap, done: services.Changed) -> Any:
    cap.notes = list(done.notes)  # type: ignore[attr-defined]
    return MemberCapWrittenSerializer(cap).data


def _cap(actor: User, cap_id: UUID) -> MemberCap:
    cap = selectors.caps_for(actor).filter(pk=cap_id).first()
    if cap is None:
        raise NotFound("There is no such cap.", next_action="Look at the list of caps.")
    return cap


class CapDetail(ApiView):
    scopes = SCOPES

    @operation("Read a cap", responses={200: MemberCapSerializer}, errors=[404])
    def get(self, request: UserRequest, cap_id: UUID) -> Response:
        return Response(MemberCapSerializer(_cap(request.user, cap_id)).data)

    @operation(
        "Change a cap",
        description="For owners of the team and operators.",
        request=MemberCapChangeSerializer,
        responses={200: MemberCapWrittenSerializer},
        errors=[400, 404, 415],
    )
    def put(self, request: UserRequest, cap_id: UUID) -> Response:
        cap = _cap(request.user, cap_id)
        policies.require_split(request.user, cap.team)
        amount = body_of(request, MemberCapChangeSerializer)["amount"]
        done = services.set_member_cap(
            actor=request.user, team=cap.team, user=cap.user, resource=cap.resource, amount=amount
        )
        return Response(_written_cap(_cap(request.user, cap_id), done))

    @operation(
        "Take a cap away",
        description="For owners of the team and operators.",
        responses={204: None},
        errors=[404],
    )
    def delete(self, request: UserRequest, cap_id: UUID) -> Response:
        cap = _cap(request.user, cap_id)
        services.remove_member_cap(actor=request.user, team=cap.team, user=cap.user, resource=cap.resource)
        return Response(status=204)


urlpatterns = [
    *routes("quotas", QuotaList, "quotas"),
    *routes("quotas/<uuid:quota_id>", QuotaDetail, "quota"),
    *routes("teams/<slug:slug>/usage", TeamUsage, "team-usage"),
    *routes("member-caps", CapList, "member-caps"),
    *routes("member-caps/<uuid:cap_id>", CapDetail, "member-cap"),
]
