"""Cohorts, shares, limits of the site and rates over REST."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import register_converter, reverse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework.response import Response

from portal.accounts.models import Team, User
from portal.common.api import ApiView, ListView, UserRequest, operation, routes
from portal.quotas import policies
from portal.quotas.api.limits import SCOPES, body_of, named_cohort
from portal.quotas.models import Cohort, ResourceRate, SiteLimit
from portal.quotas.selectors import limits as selectors
from portal.quotas.serializers import (
    RESOURCE_HELP,
    CohortChangeSerializer,
    CohortCreateSerializer,
    CohortSerializer,
    RateChangeSerializer,
    RateSerializer,
    ShareChangeSerializer,
    ShareSerializer,
    SiteLimitChangeSerializer,
    SiteLimitSerializer,
    SiteLimitWrittenSerializer,
)
from portal.quotas.services import cohorts
from portal.quotas.services import limits as services


class ResourceConverter:
    """What a resource's name may hold, and nothing that a database would stumble over."""

    regex = r"[A-Za-z0-9:._+-]{1,80}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(ResourceConverter, "resource")
RESOURCE = OpenApiParameter("resource", str, OpenApiParameter.PATH, description=RESOURCE_HELP)


class CohortList(ListView):
    scopes = SCOPES
    serializer_class = CohortSerializer
    ordering = ("slug",)

    def get_queryset(self) -> QuerySet[Cohort]:
        return Cohort.objects.none() if self.documenting() else selectors.cohorts_for(self.request.user)

    @operation(
        "List cohorts",
        description="Those that your teams are in; all for operators and approvers.",
        responses={200: CohortSerializer(many=True)},
        errors=[400],
    )
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Create a cohort",
        description="For operators.",
        request=CohortCreateSerializer,
        responses={201: CohortSerializer},
        errors=[400, 415],
        examples=[
            OpenApiExample(
                "Inside another one",
                {"slug": "nlp", "name": "Language", "parent": "research"},
                request_only=True,
            )
        ],
    )
    def post(self, request: UserRequest) -> Response:
        policies.require_set_limits(request.user)
        given = body_of(request, CohortCreateSerializer)
        cohort = cohorts.create_cohort(
            actor=request.user,
            slug=given["slug"],
            name=given.get("name", ""),
            parent=named_cohort(given["parent"], "parent"),
            weight_milli=given["weight_milli"],
        )
        location = reverse("api:cohort", args=[cohort.slug])
        return Response(_cohort_data(request.user, cohort.slug), status=201, headers={"Location": location})


def _cohort_data(actor: User, slug: str) -> Any:
    return CohortSerializer(selectors.cohort_by_slug(actor, slug)).data


class CohortDetail(ApiView):
    scopes = SCOPES

    @operation("Read a cohort", responses={200: CohortSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        return Response(_cohort_data(request.user, slug))

    @operation(
        "Change a cohort",
        description="For operators: its name, what it is inside, its weight.",
        request=CohortChangeSerializer,
        responses={200: CohortSerializer},
        errors=[400, 404, 415],
    )
    def put(self, request: UserRequest, slug: str) -> Response:
        policies.require_set_limits(request.user)
        cohort = selectors.cohort_by_slug(request.user, slug)
        given = body_of(request, CohortChangeSerializer)
        cohorts.change_cohort(
            actor=request.user,
            cohort=cohort,
            name=given["name"],
            parent=named_cohort(given["parent"], "parent"),
            weight_milli=given["weight_milli"],
        )
        return Response(_cohort_data(request.user, slug))

    @operation(
        "Delete a cohort",
        description="For operators. Refused while teams or cohorts are in it.",
        responses={204: None},
        errors=[404, 409],
    )
    def delete(self, request: UserRequest, slug: str) -> Response:
        policies.require_set_limits(request.user)
        cohorts.delete_cohort(actor=request.user, cohort=selectors.cohort_by_slug(request.user, slug))
        return Response(status=204)


def _share_data(team: Team) -> Any:
    share = selectors.share_of(team)
    data = {
        "team": team.slug,
        "cohort": share.cohort.slug if share.cohort else None,
        "weight_milli": share.weight_milli,
        "reclaim": share.reclaim,
    }
    return ShareSerializer(data).data


class TeamShareDetail(ApiView):
    scopes = SCOPES

    @operation("Read a team's share", responses={200: ShareSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        return Response(_share_data(selectors.team_for(request.user, slug)))

    @operation(
        "Set a team's share",
        description="For operators: its cohort, its weight, and whether it takes back what it lent.",
        request=ShareChangeSerializer,
        responses={200: ShareSerializer},
        errors=[400, 404, 415],
        examples=[
            OpenApiExample(
                "Twice the usual weight", {"cohort": "research", "weight_milli": 2000}, request_only=True
            )
        ],
    )
    def put(self, request: UserRequest, slug: str) -> Response:
        team = selectors.team_for(request.user, slug)
        policies.require_set_limits(request.user)
        given = body_of(request, ShareChangeSerializer)
        cohorts.set_share(
            actor=request.user,
            team=team,
            cohort=named_cohort(given["cohort"]),
            weight_milli=given["weight_milli"],
            reclaim=given["reclaim"],
        )
        return Response(_share_data(team))


class SiteLimitList(ListView):
    scopes = SCOPES
    serializer_class = SiteLimitSerializer
    ordering = ("resource",)

    def get_queryset(self) -> QuerySet[SiteLimit]:
        return selectors.site_limits()

    @operation("List limits of the site", responses={200: SiteLimitSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


class SiteLimitDetail(ApiView):
    scopes = SCOPES

    @operation(
        "Limit what all together may hold",
        description="For operators. A limit below use stops nobody; `notes` say what is over.",
        request=SiteLimitChangeSerializer,
        responses={200: SiteLimitWrittenSerializer},
        parameters=[RESOURCE],
        errors=[400, 415],
        examples=[OpenApiExample("12 GPUs of it", {"amount": 12000}, request_only=True)],
    )
    def put(self, request: UserRequest, resource: str) -> Response:
        policies.require_set_limits(request.user)
        amount = body_of(request, SiteLimitChangeSerializer)["amount"]
        done = services.set_site_limit(actor=request.user, resource=resource, amount=amount)
        limit = SiteLimit(resource=services.clean_resource(resource), amount=amount)
        limit.notes = list(done.notes)  # type: ignore[attr-defined]
        return Response(SiteLimitWrittenSerializer(limit).data)

    @operation(
        "Take a limit of the site away",
        description="For operators.",
        responses={204: None},
        parameters=[RESOURCE],
        errors=[400],
    )
    def delete(self, request: UserRequest, resource: str) -> Response:
        services.remove_site_limit(actor=request.user, resource=resource)
        return Response(status=204)


class RateList(ListView):
    scopes = SCOPES
    serializer_class = RateSerializer
    ordering = ("resource",)

    def get_queryset(self) -> QuerySet[ResourceRate]:
        return selectors.rates()

    @operation(
        "List rates",
        description="What an hour of an accelerator costs in GPU-hours, where it is not one.",
        responses={200: RateSerializer(many=True)},
        errors=[400],
    )
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


class RateDetail(ApiView):
    scopes = SCOPES

    @operation(
        "Set what an hour costs",
        description="For operators, in thousandths of a GPU-hour.",
        request=RateChangeSerializer,
        responses={200: RateSerializer},
        parameters=[RESOURCE],
        errors=[400, 415],
        examples=[OpenApiExample("Two and a half GPU-hours", {"rate_milli": 2500}, request_only=True)],
    )
    def put(self, request: UserRequest, resource: str) -> Response:
        policies.require_set_limits(request.user)
        rate = body_of(request, RateChangeSerializer)["rate_milli"]
        services.set_rate(actor=request.user, resource=resource, rate_milli=rate)
        name = services.clean_resource(resource)
        return Response(RateSerializer(ResourceRate(resource=name, rate_milli=rate)).data)

    @operation(
        "Take a rate away",
        description="For operators. An hour costs one GPU-hour then.",
        responses={204: None},
        parameters=[RESOURCE],
        errors=[400],
    )
    def delete(self, request: UserRequest, resource: str) -> Response:
        services.remove_rate(actor=request.user, resource=resource)
        return Response(status=204)


urlpatterns = [
    *routes("cohorts", CohortList, "cohorts"),
    *routes("cohorts/<slug:slug>", CohortDetail, "cohort"),
    *routes("teams/<slug:slug>/share", TeamShareDetail, "team-share"),
    *routes("site-limits", SiteLimitList, "site-limits"),
    *routes("site-limits/<resource:resource>", SiteLimitDetail, "site-limit"),
    *routes("rates", RateList, "rates"),
    *routes("rates/<resource:resource>", RateDetail, "rate"),
]
