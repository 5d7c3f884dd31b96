"""REST views of cohorts, shares, site limits and rates."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import register_converter, reverse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ApiView,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    operation,
    routes,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.people.accounts.models import Team
from portal.quota.limits.api.limits import SCOPES, SetsLimits, named_cohort
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.models import Cohort, ResourceRate, SiteLimit
from portal.quota.limits.selectors import limits as selectors
from portal.quota.limits.serializers import (
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
from portal.quota.limits.services import cohorts
from portal.quota.limits.services import limits as services
from portal.quota.limits.types import Fungibility


class ResourceConverter:
    """Path converter that accepts only characters valid in resource names."""

    regex = r"[A-Za-z0-9:._+-]{1,80}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(ResourceConverter, "resource")
RESOURCE = OpenApiParameter("resource", str, OpenApiParameter.PATH, description=RESOURCE_HELP)


@documented(
    list="List cohorts",
    of="Lists the cohorts of your teams. Operators and approvers see all.",
    retrieve="Read a cohort",
)
class CohortViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset({"team_count"})
    tag = "quotas"
    operation_ids = {
        "list": "listCohorts",
        "create": "createCohort",
        "retrieve": "getCohort",
        "update": "setCohort",
        "destroy": "deleteCohort",
    }
    queryset = Cohort.objects.none()
    serializer_class = CohortSerializer
    permission_classes = [SetsLimits]
    scopes = SCOPES
    ordering = ("slug",)
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[Cohort]:
        return selectors.cohorts_for(self.request.user)

    def get_object(self) -> Cohort:
        return selectors.cohort_by_slug(self.request.user, self.kwargs["slug"])

    @operation(
        "Create a cohort",
        idempotent=True,
        description="For operators.",
        request=CohortCreateSerializer,
        responses={201: CohortSerializer},
        errors=[400, 415],
        examples=[
            OpenApiExample(
                "Inside another cohort",
                {"slug": "nlp", "name": "Language", "parent": "research"},
                request_only=True,
            )
        ],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, CohortCreateSerializer)
        cohort = cohorts.create_cohort(
            actor=request.user,
            slug=body["slug"],
            name=body.get("name", ""),
            parent=named_cohort(request.user, body["parent"], "parent"),
            weight_milli=body["weight_milli"],
            fungibility=Fungibility(body["borrow_first"], body["preempt_first"]),
        )
        self.kwargs["slug"] = cohort.slug
        location = reverse("api:cohort-detail", args=[cohort.slug])
        return self.answer(self.get_object(), status=201, Location=location)

    @operation(
        "Replace a cohort",
        description="For operators. Replaces name, parent and weight.",
        request=CohortChangeSerializer,
        responses={200: CohortSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def update(self, request: UserRequest, slug: str) -> Response:
        cohort = self.get_object()
        body = body_of(request, CohortChangeSerializer)
        cohorts.change_cohort(
            actor=request.user,
            cohort=cohort,
            name=body["name"],
            parent=named_cohort(request.user, body["parent"], "parent"),
            weight_milli=body["weight_milli"],
            fungibility=Fungibility(body["borrow_first"], body["preempt_first"]),
            expected=etags.expected_versions(request),
        )
        return self.answer(self.get_object())

    @operation(
        "Delete a cohort",
        description="For operators. Denied while it contains teams or cohorts.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        cohorts.delete_cohort(
            actor=request.user, cohort=self.get_object(), expected=etags.expected_versions(request)
        )
        return Response(status=204)


def _share(team: Team) -> Response:
    share = selectors.share_of(team)
    data = {
        "team": team.slug,
        "cohort": share.cohort.slug if share.cohort else None,
        "weight_milli": share.weight_milli,
        "reclaim": share.reclaim,
    }
    return Response(ShareSerializer(data).data, headers=etags.headers_of(share))


class TeamShareDetail(ApiView):
    """The share of a team. It always exists."""

    tag = "quotas"
    operation_ids = {"get": "getTeamShare", "put": "setTeamShare"}
    scopes = SCOPES

    @operation("Read a team's share", responses={200: ShareSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        return _share(selectors.team_for(request.user, slug))

    @operation(
        "Set a team's share",
        description="For operators. Sets cohort, weight and whether the team reclaims what it has lent.",
        request=ShareChangeSerializer,
        responses={200: ShareSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
        examples=[
            OpenApiExample(
                "Twice the usual weight", {"cohort": "research", "weight_milli": 2000}, request_only=True
            )
        ],
    )
    def put(self, request: UserRequest, slug: str) -> Response:
        team = selectors.team_for(request.user, slug)
        body = body_of(request, ShareChangeSerializer)
        cohorts.set_share(
            actor=request.user,
            team=team,
            cohort=named_cohort(request.user, body["cohort"]),
            weight_milli=body["weight_milli"],
            reclaim=body["reclaim"],
            expected=etags.expected_versions(request),
        )
        return _share(team)


class _ResourceKeyedViewSet(TaggedViewSet, ReadViewSet):
    """Base of views whose rows are identified by a resource."""

    permission_classes = [SetsLimits]
    scopes = SCOPES
    ordering = ("resource",)
    lookup_field = "resource"
    lookup_value_converter = "resource"

    def get_object(self) -> Any:
        self.kwargs["resource"] = self.kwargs["resource"].lower()
        return super().get_object()


@documented(list="List site limits", retrieve="Read a site limit")
class SiteLimitViewSet(_ResourceKeyedViewSet):
    tag = "quotas"
    operation_ids = {
        "list": "listSiteLimits",
        "retrieve": "getSiteLimit",
        "update": "setSiteLimit",
        "destroy": "deleteSiteLimit",
    }
    queryset = SiteLimit.objects.none()
    serializer_class = SiteLimitSerializer
    missing = QuotaCode.NO_SUCH_SITE_LIMIT

    def get_queryset(self) -> QuerySet[SiteLimit]:
        return selectors.site_limits()

    @operation(
        "Set a site limit",
        description=(
            "For operators. Limits the total of all teams. A limit below current use stops no workspace; "
            "`notes` list what exceeds it."
        ),
        request=SiteLimitChangeSerializer,
        responses={200: SiteLimitWrittenSerializer},
        parameters=[RESOURCE, IF_MATCH],
        errors=[400, 404, 412, 415],
        examples=[OpenApiExample("12 GPUs", {"amount": 12000}, request_only=True)],
    )
    def update(self, request: UserRequest, resource: str) -> Response:
        amount = body_of(request, SiteLimitChangeSerializer)["amount"]
        expected = etags.expected_versions(request)
        done = services.set_site_limit(
            actor=request.user, resource=resource, amount=amount, expected=expected
        )
        limit = SiteLimit(resource=services.clean_resource(resource), amount=amount)
        limit.notes = list(done.notes)  # type: ignore[attr-defined]
        return etags.with_etag(Response(SiteLimitWrittenSerializer(limit).data), limit)

    @operation(
        "Delete a site limit",
        description="For operators.",
        responses={204: None},
        parameters=[RESOURCE, IF_MATCH],
        errors=[400, 404, 412],
    )
    def destroy(self, request: UserRequest, resource: str) -> Response:
        expected = etags.expected_versions(request)
        services.remove_site_limit(actor=request.user, resource=resource, expected=expected)
        return Response(status=204)


@documented(
    list="List rates",
    of="Lists accelerators whose hour costs more or less than 1 GPU-hour.",
    retrieve="Read a rate",
)
class RateViewSet(_ResourceKeyedViewSet):
    tag = "gpu-hours"
    operation_ids = {
        "list": "listRates",
        "retrieve": "getRate",
        "update": "setRate",
        "destroy": "deleteRate",
    }
    queryset = ResourceRate.objects.none()
    serializer_class = RateSerializer
    missing = QuotaCode.NO_SUCH_RATE

    def get_queryset(self) -> QuerySet[ResourceRate]:
        return selectors.rates()

    @operation(
        "Set a rate",
        description="For operators. Sets the price of an hour, in thousandths of a GPU-hour.",
        request=RateChangeSerializer,
        responses={200: RateSerializer},
        parameters=[RESOURCE, IF_MATCH],
        errors=[400, 404, 412, 415],
        examples=[OpenApiExample("2.5 GPU-hours", {"rate_milli": 2500}, request_only=True)],
    )
    def update(self, request: UserRequest, resource: str) -> Response:
        rate = body_of(request, RateChangeSerializer)["rate_milli"]
        expected = etags.expected_versions(request)
        services.set_rate(actor=request.user, resource=resource, rate_milli=rate, expected=expected)
        name = services.clean_resource(resource)
        return self.answer(ResourceRate(resource=name, rate_milli=rate))

    @operation(
        "Delete a rate",
        description="For operators. Resets the price to 1 GPU-hour per hour.",
        responses={204: None},
        parameters=[RESOURCE, IF_MATCH],
        errors=[400, 404, 412],
    )
    def destroy(self, request: UserRequest, resource: str) -> Response:
        expected = etags.expected_versions(request)
        services.remove_rate(actor=request.user, resource=resource, expected=expected)
        return Response(status=204)


router = Router()
router.register("cohorts", CohortViewSet)
router.register("site-limits", SiteLimitViewSet, basename="site-limit")
router.register("rates", RateViewSet, basename="rate")
urlpatterns = [*router.urls, *routes("teams/<slug:slug>/share", TeamShareDetail, "team-share")]
