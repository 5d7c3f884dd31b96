"""REST API of sign-in providers, for administrators."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import SAFE_METHODS
from rest_framework.response import Response

from portal.common.api import ApiView, ListViewSet, UserRequest, body_of, documented, operation, routes
from portal.common.scopes import Scope
from portal.people.accounts import policies
from portal.people.accounts.selectors import user_by_name
from portal.people.accounts.user_api import CanAdministrateUsers
from portal.people.identity import lookups, presenters, selectors, services
from portal.people.identity.config import Provider
from portal.people.identity.decisions import decide
from portal.people.identity.models import IdentityLink
from portal.people.identity.serializers import (
    IdentityLinkCreateSerializer,
    IdentityLinkSerializer,
    LookUpRequestSerializer,
    LookUpSerializer,
    PreviewRequestSerializer,
    PreviewSerializer,
    ProviderListSerializer,
    ProviderSerializer,
)

PROVIDER = OpenApiParameter("idp", str, OpenApiParameter.PATH, description="The provider's id.")
USERNAME = OpenApiParameter("username", str, OpenApiParameter.PATH, description="Username of the user.")


class _View(ApiView):
    tag = "users"
    scopes = {"GET": Scope.USERS_READ, "*": Scope.USERS_READ}

    def check_permissions(self, request: UserRequest) -> None:  # type: ignore[override]
        super().check_permissions(request)
        if not hasattr(self, str(request.method).lower()):
            return
        if request.method in SAFE_METHODS:
            policies.require_see_people(request.user)
        else:
            policies.require_administrator(request.user)


class Providers(_View):
    operation_ids = {"get": "listSignInProviders"}

    @operation(
        "List sign-in providers",
        description="For administrators.",
        responses={200: ProviderListSerializer},
    )
    def get(self, request: UserRequest) -> Response:
        figures = selectors.figures()
        rows = [
            presenters.provider_row(provider, figures) for provider in selectors.providers_for(request.user)
        ]
        return Response(ProviderListSerializer({"results": rows}).data)


class ProviderDetail(_View):
    operation_ids = {"get": "getSignInProvider"}

    @operation(
        "Read a sign-in provider", responses={200: ProviderSerializer}, parameters=[PROVIDER], errors=[404]
    )
    def get(self, request: UserRequest, idp: str) -> Response:
        provider = selectors.provider_for(request.user, idp)
        return Response(ProviderSerializer(presenters.provider_row(provider, selectors.figures())).data)


class Preview(_View):
    operation_ids = {"post": "previewSignIn"}

    @operation(
        "Preview a sign-in",
        description=(
            "Returns the effects of a sign-in with these claims. Signs nobody in and changes nothing."
        ),
        request=PreviewRequestSerializer,
        responses={200: PreviewSerializer},
        parameters=[PROVIDER],
        errors=[400, 404, 415],
    )
    def post(self, request: UserRequest, idp: str) -> Response:
        provider = selectors.provider_for(request.user, idp)
        claims = body_of(request, PreviewRequestSerializer)["claims"]
        return Response(PreviewSerializer(presenters.decision_json(decide(provider, claims))).data)


class Test(_View):
    operation_ids = {"post": "testSignInProvider"}

    @operation(
        "Test a directory",
        description=(
            "LDAP only. Reads a user's attributes and groups with the search account, and returns the "
            "effects of a sign-in. Signs nobody in and changes nothing. The audit log records the request."
        ),
        request=LookUpRequestSerializer,
        responses={200: LookUpSerializer},
        parameters=[PROVIDER],
        errors=[400, 404, 409, 415, 503],
    )
    def post(self, request: UserRequest, idp: str) -> Response:
        provider = selectors.provider_for(request.user, idp)
        username = body_of(request, LookUpRequestSerializer)["username"]
        lookup = lookups.look_up(actor=request.user, provider=provider, username=username)
        outcome = presenters.decision_json(lookup.decision)
        return Response(LookUpSerializer({"claims": lookup.claims, "outcome": outcome}).data)


@documented(
    list="List the linked accounts of a provider", of="For administrators. Sorted by name.", errors=[404]
)
class LinkViewSet(ListViewSet):
    tag = "users"
    operation_ids = {
        "list": "listSignInLinks",
        "create": "createSignInLink",
        "destroy": "deleteSignInLink",
    }
    queryset = IdentityLink.objects.none()
    serializer_class = IdentityLinkSerializer
    permission_classes = [CanAdministrateUsers]
    scopes = {"GET": Scope.USERS_READ, "*": Scope.USERS_WRITE}
    ordering = ("created_at", "id")

    @property
    def provider(self) -> Provider:
        return selectors.provider_for(self.request.user, self.kwargs["idp"])

    def get_queryset(self) -> QuerySet[IdentityLink]:
        return selectors.links_of(self.request.user, self.provider)

    @operation(
        "Link an account to a provider",
        idempotent=True,
        request=IdentityLinkCreateSerializer,
        responses={201: IdentityLinkSerializer},
        located=False,
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest, idp: str) -> Response:
        body = body_of(request, IdentityLinkCreateSerializer)
        provider = self.provider
        row = services.link(
            actor=request.user,
            provider=provider,
            user=user_by_name(request.user, body["username"]),
            subject=body["subject"],
            expected=body["expected"],
        )
        return self.answer(row, status=201)

    @operation(
        "Delete the link of an account",
        description=(
            "Ends the user's sessions, and removes memberships and roles from the provider's rules."
        ),
        responses={204: None},
        parameters=[PROVIDER, USERNAME],
        errors=[404, 409],
    )
    def destroy(self, request: UserRequest, idp: str, username: str) -> Response:
        services.unlink(actor=request.user, provider_id=self.provider.id, username=username)
        return Response(status=204)


def _links(route: str, actions: dict[str, Any], name: str) -> list[URLPattern]:
    return [
        path(route, LinkViewSet.as_view(actions), name=name),
        path(f"{route}/", LinkViewSet.as_view(actions, schema=None)),
    ]


urlpatterns = [
    *routes("sign-in-providers", Providers, "sign-in-provider-list"),
    *routes("sign-in-providers/<slug:idp>", ProviderDetail, "sign-in-provider-detail"),
    *routes("sign-in-providers/<slug:idp>/preview", Preview, "sign-in-provider-preview"),
    *routes("sign-in-providers/<slug:idp>/test", Test, "sign-in-provider-test"),
    *_links("sign-in-providers/<slug:idp>/links", {"get": "list", "post": "create"}, "identity-link-list"),
    *_links(
        "sign-in-providers/<slug:idp>/links/<username:username>",
        {"delete": "destroy"},
        "identity-link-detail",
    ),
]
