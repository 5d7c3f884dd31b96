"""REST API of users, for administrators. Auditors can read it."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework.decorators import action
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ListViewSet,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.events.models import Event
from portal.common.scopes import Scope
from portal.people.accounts import deactivation, deletion_choices, policies, selectors, users
from portal.people.accounts.authentication import HasScope
from portal.people.accounts.mfa import factors
from portal.people.accounts.mfa import services as mfa
from portal.people.accounts.mfa.proof import require_fresh
from portal.people.accounts.models import (
    AccountKind,
    AccountState,
    SecondFactor,
    SiteRole,
    User,
    UserQuerySet,
)
from portal.people.accounts.user_serializers import (
    DeactivateSerializer,
    InvitedUserSerializer,
    LinkSerializer,
    RevokedSessionsSerializer,
    RevokeSessionsSerializer,
    SignInSerializer,
    UserChangeSerializer,
    UserCreateSerializer,
    UserSerializer,
)

SCOPES = {"GET": Scope.USERS_READ, "*": Scope.USERS_WRITE}
NO_STORE = {"Cache-Control": "no-store"}


class CanAdministrateUsers(HasScope):
    """Checks permission before the body is parsed, because the body names users and teams."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        if view.action is not None:
            actor: Any = request.user
            if request.method in SAFE_METHODS:
                policies.require_see_people(actor)
            else:
                policies.require_administrator(actor)
        return True


class UserFilter(filters.FilterSet):
    q = filters.CharFilter(
        method="filter_words", label="Words to search for in username and e-mail address.", max_length=100
    )
    state = filters.ChoiceFilter(
        choices=[choice for choice in AccountState.choices if choice[0] != AccountState.DELETED],
        method="filter_status",
        label="Only accounts in this state.",
    )
    kind = filters.ChoiceFilter(
        choices=AccountKind.choices, method="filter_kind", label="Only people, or only service accounts."
    )
    role = filters.ChoiceFilter(
        choices=SiteRole.choices, method="filter_role", label="Only users with this role."
    )
    mfa = filters.BooleanFilter(
        field_name="mfa_since",
        lookup_expr="isnull",
        exclude=True,
        label="Whether the user has a second factor.",
    )
    second_factor = filters.ChoiceFilter(
        choices=[(factors.NO_FACTOR, "None"), *SecondFactor.choices],
        method="filter_factor",
        label="Only users with this second factor. `none`: people without one.",
    )
    team = filters.CharFilter(
        field_name="memberships__team__slug", label="Only those of members of this team, by slug."
    )

    def filter_words(self, queryset: UserQuerySet, _name: str, value: str) -> QuerySet[User]:
        return selectors.search_users(queryset, value)

    def filter_status(self, queryset: UserQuerySet, _name: str, value: str) -> QuerySet[User]:
        return queryset.with_state(value)

    def filter_kind(self, queryset: UserQuerySet, _name: str, value: str) -> QuerySet[User]:
        return queryset.of_kind(value)

    def filter_role(self, queryset: UserQuerySet, _name: str, value: str) -> QuerySet[User]:
        return queryset.with_role(value)

    def filter_factor(self, queryset: UserQuerySet, _name: str, value: str) -> QuerySet[User]:
        return factors.users_with_factor(queryset, value)


@documented(list="List users", retrieve="Read a user", of="For administrators.")
class UserViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset({"last_sign_in_at", "second_factors"})
    tag = "users"
    operation_ids = {
        "list": "listUsers",
        "create": "inviteUser",
        "retrieve": "getUser",
        "partial_update": "updateUser",
        "destroy": "deleteUser",
        "deactivate": "deactivateUser",
        "invite": "inviteUserAgain",
        "reactivate": "reactivateUser",
        "reset_mfa": "resetUserMfa",
        "reset_password": "resetUserPassword",
        "revoke_sessions": "revokeUserSessions",
    }
    queryset = User.objects.none()
    serializer_class = UserSerializer
    permission_classes = [CanAdministrateUsers]
    filterset_class = UserFilter
    scopes = SCOPES
    ordering = ("username",)
    lookup_field = "username"
    lookup_value_converter = "username"

    def get_queryset(self) -> QuerySet[User]:
        return factors.prefetch_factors(selectors.users_for(self.request.user))

    def get_object(self) -> User:
        return selectors.user_by_name(self.request.user, self.kwargs["username"])

    @property
    def query_params(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"workspaces", "homes"}) if self.action == "destroy" else frozenset()

    def shown(self, user: User, *, status: int = 200, **headers: str) -> Response:
        return self.answer(self.get_queryset().get(pk=user.pk), status=status, **headers)

    def _invitation_response(self, link: users.Link, *, status: int, **headers: str) -> Response:
        row = self.get_queryset().get(pk=link.user.pk)
        data = InvitedUserSerializer(row, context={"link": link}).data
        return Response(data, status=status, headers={**NO_STORE, **headers})

    @operation(
        "Invite a user",
        idempotent=True,
        description=(
            "Returns a link, shown only once, to set a password and sign in. The portal also sends it by "
            "e-mail if a mail server is configured and the user has an address."
        ),
        request=UserCreateSerializer,
        responses={201: InvitedUserSerializer},
        errors=[400, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, UserCreateSerializer)
        if body.get("roles"):
            require_fresh(request)
        link = users.invite(
            actor=request.user,
            username=body["username"],
            email=body.get("email", ""),
            teams=_places(body.get("teams", [])),
            roles=body.get("roles", []),
        )
        location = reverse("api:user-detail", args=[link.user.username])
        return self._invitation_response(link, status=201, Location=location)

    @operation(
        "Change a user",
        description=(
            "Replaces e-mail address, site roles or team memberships. Omitted fields stay unchanged."
        ),
        request=UserChangeSerializer,
        responses={200: UserSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def partial_update(self, request: UserRequest, username: str) -> Response:
        require_fresh(request)
        body = body_of(request, UserChangeSerializer)
        user = users.change(
            actor=request.user,
            user=self.get_object(),
            email=body.get("email"),
            roles=body.get("roles"),
            teams=_places(body["teams"]) if "teams" in body else None,
            expected=etags.expected_versions(request),
        )
        return self.shown(user)

    @operation(
        "Delete a user",
        description=(
            "Deletes roles, memberships, tokens and e-mail address. The username cannot be reused. Denied "
            "while the user has workspaces, unless `workspaces=delete`. Home folders stay on their nodes, "
            "unless `homes=delete`: then they are deleted once no workspace uses them."
        ),
        responses={204: None},
        parameters=[deletion_choices.WORKSPACES, deletion_choices.HOMES],
        errors=[400, 404, 409],
    )
    def destroy(self, request: UserRequest, username: str) -> Response:
        require_fresh(request)
        users.delete(
            actor=request.user,
            user=self.get_object(),
            delete_workspaces=deletion_choices.is_deletion_chosen(request),
            delete_homes=deletion_choices.is_deletion_chosen(request, "homes"),
        )
        return Response(status=204)

    @operation(
        "Deactivate a user",
        description=(
            "Ends sessions, tokens, tickets, open connections and delegations within seconds. Stops "
            "workspaces and keeps their files. Cancels pending requests. Teams without another owner get "
            "one. Idempotent."
        ),
        request=DeactivateSerializer,
        responses={200: UserSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"])
    def deactivate(self, request: UserRequest, username: str) -> Response:
        reason = body_of(request, DeactivateSerializer).get("note", "")
        user = deactivation.deactivate(actor=request.user, user=self.get_object(), reason=reason)
        return self.shown(user)

    @operation(
        "Reactivate a user",
        description=(
            "Restores the account with its password and memberships. Revoked tokens and ended sessions "
            "stay invalid. Idempotent."
        ),
        responses={200: UserSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def reactivate(self, request: UserRequest, username: str) -> Response:
        return self.shown(deactivation.reactivate(actor=request.user, user=self.get_object()))

    @operation(
        "Invite a user again",
        idempotent=True,
        description=(
            "Returns a new link for a user who has not signed in yet. Earlier links become invalid."
        ),
        responses={200: InvitedUserSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def invite(self, request: UserRequest, username: str) -> Response:
        return self._invitation_response(
            users.invite_again(actor=request.user, user=self.get_object()), status=200
        )

    @operation(
        "Reset a user's password",
        idempotent=True,
        description=(
            "Takes effect immediately and revokes all sessions. Returns a link, shown only once, to choose "
            "a new password. Tokens stay valid."
        ),
        responses={200: LinkSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"], url_path="reset-password")
    def reset_password(self, request: UserRequest, username: str) -> Response:
        require_fresh(request)
        link = users.reset_password(actor=request.user, user=self.get_object())
        return Response(LinkSerializer(link).data, headers=NO_STORE)

    @operation(
        "Reset a user's second factors",
        description="For users who have lost them. Deletes app, passkeys and recovery codes, and ends all "
        "sessions. The user is notified. Idempotent.",
        responses={200: UserSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["post"], url_path="reset-mfa")
    def reset_mfa(self, request: UserRequest, username: str) -> Response:
        require_fresh(request)
        user = self.get_object()
        mfa.reset(actor=request.user, user=user)
        return self.shown(user)

    @operation(
        "Revoke a user's sessions",
        description="Signs the user out on all devices within seconds.",
        request=RevokeSessionsSerializer,
        responses={200: RevokedSessionsSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"], url_path="sessions/revoke")
    def revoke_sessions(self, request: UserRequest, username: str) -> Response:
        tokens = body_of(request, RevokeSessionsSerializer)["tokens"]
        revoked = users.end_sessions(actor=request.user, user=self.get_object(), tokens=tokens)
        return Response({"revoked": revoked})


def _places(memberships: list[dict[str, Any]]) -> dict[str, str]:
    return {place["team"]: place["role"] for place in memberships}


@documented(
    list="List a user's sign-ins",
    of="For administrators. Lists sign-ins, refused sign-ins and ends of sessions. Newest first.",
    errors=[404],
)
class SignInViewSet(ListViewSet):
    tag = "users"
    operation_ids = {"list": "listUserSignIns"}
    queryset = Event.objects.none()
    serializer_class = SignInSerializer
    permission_classes = [CanAdministrateUsers]
    scopes = SCOPES
    ordering = ("-id",)

    def get_queryset(self) -> QuerySet[Event]:
        return selectors.sign_ins_of(selectors.user_by_name(self.request.user, self.kwargs["username"]))


router = Router()
router.register("users", UserViewSet)
router.register("users/<username:username>/sign-ins", SignInViewSet, basename="sign-in")
urlpatterns = router.urls
