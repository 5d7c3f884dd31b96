"""REST views of quotas, member caps and usage of teams."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiExample
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ApiView,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    not_found_as_invalid,
    operation,
    routes,
)
from portal.common.errors import InvalidInput
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.common.texts import strip_nul
from portal.people.accounts.authentication import HasScope
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Team, User
from portal.quota.limits import policies
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.models import Cohort, MemberCap, Quota
from portal.quota.limits.selectors import limits as selectors
from portal.quota.limits.serializers import (
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
from portal.quota.limits.services import limits as services

SCOPES = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}


class SetsLimits(HasScope):
    """Checks permission for writes before the body, which names teams and cohorts, is read."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        if view.action is not None and request.method not in SAFE_METHODS:
            actor: Any = request.user
            policies.require_set_limits(actor)
        return True


def named_team(slug: str) -> Team:
    """Return a team named in the body. Raises `InvalidInput`."""
    team = Team.objects.filter(slug=strip_nul(slug)).first()
    if team is None:
        reason = Reason(AccountCode.NO_SUCH_TEAM, {"slug": slug})
        raise InvalidInput(reason, errors={"team": [reason]})
    return team


def named_cohort(actor: User, slug: str | None, field: str = "cohort") -> Cohort | None:
    """Return a visible cohort named in the body, or None. Raises `InvalidInput`."""
    if slug is None:
        return None
    cohort = selectors.cohorts_for(actor).filter(slug=strip_nul(slug)).first()
    if cohort is None:
        reason = Reason(QuotaCode.NO_SUCH_COHORT, {"slug": slug})
        raise InvalidInput(reason, errors={field: [reason]})
    return cohort


class QuotaFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    cohort = filters.CharFilter(field_name="cohort__slug", label="Slug of the cohort.")
    resource = filters.CharFilter(label="Only this resource, such as `gpu:h100`.")


@documented(
    list="List quotas",
    of="Lists quotas of your teams and their cohorts. Operators and approvers see all.",
    retrieve="Read a quota",
)
class QuotaViewSet(TaggedViewSet, ReadViewSet):
    tag = "quotas"
    operation_ids = {
        "list": "listQuotas",
        "create": "createQuota",
        "retrieve": "getQuota",
        "update": "setQuota",
        "destroy": "deleteQuota",
    }
    queryset = Quota.objects.none()
    serializer_class = QuotaSerializer
    filterset_class = QuotaFilter
    scopes = SCOPES
    ordering = ("resource", "id")
    missing = QuotaCode.NO_SUCH_QUOTA
    lookup_url_kwarg = "quota_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Quota]:
        return selectors.quotas_for(self.request.user)

    def get_permissions(self) -> Any:
        return [SetsLimits()] if self.action == "create" else super().get_permissions()

    def _written_response(self, quota: Quota, done: services.LimitWrite, **response_kwargs: Any) -> Response:
        quota.notes = list(done.notes)  # type: ignore[attr-defined]
        answered = Response(QuotaWrittenSerializer(quota).data, **response_kwargs)
        return etags.with_etag(answered, quota)

    @operation(
        "Create a quota",
        idempotent=True,
        description="For operators. Amounts are in base units: 4 GPUs are 4000.",
        request=QuotaCreateSerializer,
        responses={201: QuotaWrittenSerializer},
        errors=[400, 409, 415],
        examples=[
            OpenApiExample(
                "4 H100 for a team that can borrow 2 more",
                {"team": "vision", "resource": "gpu:h100", "quota": 4000, "borrowing_limit": 2000},
                request_only=True,
            ),
            OpenApiExample(
                "64 GiB of memory for a whole cohort",
                {"cohort": "research", "resource": "memory_mib", "quota": 65536},
                request_only=True,
            ),
        ],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, QuotaCreateSerializer)
        team = named_team(body["team"]) if body.get("team") else None
        cohort = named_cohort(request.user, body.get("cohort"))
        done = services.set_quota(
            actor=request.user,
            team=team,
            cohort=cohort,
            resource=body["resource"],
            quota=body["quota"],
            borrowing_limit=body["borrowing_limit"],
            lending_limit=body["lending_limit"],
            only_new=True,
        )
        resource = services.clean_resource(body["resource"])
        quota = self.get_queryset().get(team=team, cohort=cohort, resource=resource)
        location = reverse("api:quota-detail", args=[quota.pk])
        return self._written_response(quota, done, status=201, headers={"Location": location})

    @operation(
        "Replace a quota",
        description=(
            "For operators. A quota below current use stops no workspace; `notes` list what exceeds it."
        ),
        request=QuotaChangeSerializer,
        responses={200: QuotaWrittenSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
        examples=[
            OpenApiExample(
                "2 H100, no borrowing, lends half of one",
                {"quota": 2000, "borrowing_limit": 0, "lending_limit": 500},
                request_only=True,
            )
        ],
    )
    def update(self, request: UserRequest, quota_id: UUID) -> Response:
        quota = self.get_object()
        done = services.set_quota(
            actor=request.user,
            team=quota.team,
            cohort=quota.cohort,
            resource=quota.resource,
            expected=etags.expected_versions(request),
            **body_of(request, QuotaChangeSerializer),
        )
        return self._written_response(self.get_object(), done)

    @operation(
        "Delete a quota",
        description="For operators. Without a quota, the resource is not limited for the team or cohort.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, quota_id: UUID) -> Response:
        quota = self.get_object()
        services.remove_quota(
            actor=request.user,
            team=quota.team,
            cohort=quota.cohort,
            resource=quota.resource,
            expected=etags.expected_versions(request),
        )
        return Response(status=204)


class TeamUsage(ApiView):
    """The usage of a team."""

    tag = "quotas"
    operation_ids = {"get": "getTeamUsage"}
    scopes = SCOPES

    @operation(
        "Read a team's quota usage",
        description="Returns used, queued and borrowed amounts and limits, by resource.",
        responses={200: UsageSerializer},
        errors=[404],
    )
    def get(self, request: UserRequest, slug: str) -> Response:
        team = selectors.team_for(request.user, slug)
        bars = selectors.team_usage(team, request.user)
        return Response(UsageSerializer({"team": team.slug, "resources": bars}).data)


class CapFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    username = filters.CharFilter(field_name="user__username", label="Username of the member.")
    resource = filters.CharFilter(label="Only this resource, such as `gpu:h100`.")


@documented(
    list="List caps of members",
    of="Lists caps of your teams. Operators and approvers see all.",
    retrieve="Read a cap",
)
class CapViewSet(TaggedViewSet, ReadViewSet):
    tag = "quotas"
    operation_ids = {
        "list": "listMemberCaps",
        "create": "createMemberCap",
        "retrieve": "getMemberCap",
        "update": "setMemberCap",
        "destroy": "deleteMemberCap",
    }
    queryset = MemberCap.objects.none()
    serializer_class = MemberCapSerializer
    filterset_class = CapFilter
    scopes = SCOPES
    ordering = ("resource", "id")
    missing = QuotaCode.NO_SUCH_CAP
    lookup_url_kwarg = "cap_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[MemberCap]:
        return selectors.caps_for(self.request.user)

    def _written_response(
        self, cap: MemberCap, done: services.LimitWrite, **response_kwargs: Any
    ) -> Response:
        cap.notes = list(done.notes)  # type: ignore[attr-defined]
        answered = Response(MemberCapWrittenSerializer(cap).data, **response_kwargs)
        return etags.with_etag(answered, cap)

    @operation(
        "Create a cap",
        idempotent=True,
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
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, MemberCapCreateSerializer)
        team = _own_team(request.user, body["team"])
        user = _member(team, body["username"])
        done = services.set_member_cap(
            actor=request.user,
            team=team,
            user=user,
            resource=body["resource"],
            amount=body["amount"],
            only_new=True,
        )
        cap = self.get_queryset().get(
            team=team, user=user, resource=services.clean_resource(body["resource"])
        )
        location = reverse("api:member-cap-detail", args=[cap.pk])
        return self._written_response(cap, done, status=201, headers={"Location": location})

    @operation(
        "Replace a cap",
        description="For owners of the team and operators.",
        request=MemberCapChangeSerializer,
        responses={200: MemberCapWrittenSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def update(self, request: UserRequest, cap_id: UUID) -> Response:
        cap = self.get_object()
        amount = body_of(request, MemberCapChangeSerializer)["amount"]
        done = services.set_member_cap(
            actor=request.user,
            team=cap.team,
            user=cap.user,
            resource=cap.resource,
            amount=amount,
            expected=etags.expected_versions(request),
        )
        return self._written_response(self.get_object(), done)

    @operation(
        "Delete a cap",
        description="For owners of the team and operators.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, cap_id: UUID) -> Response:
        cap = self.get_object()
        services.remove_member_cap(
            actor=request.user,
            team=cap.team,
            user=cap.user,
            resource=cap.resource,
            expected=etags.expected_versions(request),
        )
        return Response(status=204)


def _own_team(actor: User, slug: str) -> Team:
    with not_found_as_invalid("team"):
        return selectors.team_for(actor, slug)


def _member(team: Team, username: str | None) -> User | None:
    """Return the named user, or None for every member. The service checks membership."""
    if username is None:
        return None
    user = User.objects.filter(username=strip_nul(username).strip().lower()).first()
    if user is None:
        reason = Reason(QuotaCode.CAP_FOR_NO_MEMBER, {"username": username, "team": team.name})
        raise InvalidInput(reason, errors={"username": [reason]})
    return user


router = Router()
router.register("quotas", QuotaViewSet)
router.register("member-caps", CapViewSet, basename="member-cap")
urlpatterns = [*router.urls, *routes("teams/<slug:slug>/usage", TeamUsage, "team-usage")]
