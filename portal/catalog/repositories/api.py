"""REST views of the user's dotfiles."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from portal.catalog.repositories import rules, selectors, services
from portal.catalog.repositories.models import UserDotfiles
from portal.common import etags
from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.etags import IF_MATCH
from portal.common.scopes import Scope
from portal.people.accounts.authentication import HasScope
from portal.people.accounts.models import User


class DotfilesSerializer(serializers.Serializer[Any]):
    """The repository cloned to new homes of the user; an empty `url` for none."""

    url = serializers.CharField(allow_blank=True, help_text="Address of the repository; empty for none.")
    ref = serializers.CharField(
        allow_blank=True, help_text="Branch, tag or commit; empty for the default branch."
    )
    secret = serializers.CharField(
        allow_blank=True, help_text="Name of the secret with the credentials; empty for none."
    )
    changed_at = serializers.DateTimeField(
        allow_null=True, default=None, help_text="Time of the last change."
    )


class DotfilesWriteSerializer(StrictSerializer):
    url = serializers.CharField(
        max_length=rules.MAX_URL,
        allow_blank=True,
        help_text=(
            "URL of the repository: `https://host/path`, `ssh://git@host/path` or `git@host:path`; empty "
            "for none."
        ),
    )
    ref = serializers.CharField(
        max_length=rules.MAX_REF,
        allow_blank=True,
        required=False,
        default="",
        help_text="Branch, tag or commit. Default: the default branch of the repository.",
    )
    secret = serializers.CharField(
        max_length=64,
        allow_blank=True,
        required=False,
        default="",
        help_text="Name of your secret with the credentials: a token for HTTPS, a private key for SSH.",
    )


class Dotfiles(ApiView):
    """Writing requires a token that may connect to workspaces, since the dotfiles' script runs there."""

    tag = "secrets"
    operation_ids = {"get": "getMyDotfiles", "put": "setMyDotfiles"}
    permission_classes = [HasScope]
    scopes = {"GET": Scope.WORKSPACES_READ, "*": Scope.WORKSPACES_CONNECT}

    @operation("Read your dotfiles", responses={200: DotfilesSerializer})
    def get(self, request: UserRequest) -> Response:
        return _answer(request.user, selectors.dotfiles_of(request.user))

    @operation(
        "Set your dotfiles",
        description=(
            "Workspaces clone the repository to `~/.dotfiles` at start if that folder does not exist. An "
            "empty `url` disables it."
        ),
        request=DotfilesWriteSerializer,
        responses={200: DotfilesSerializer},
        parameters=[IF_MATCH],
        errors=[400, 412, 415],
    )
    def put(self, request: UserRequest) -> Response:
        values = body_of(request, DotfilesWriteSerializer)
        row = services.set_dotfiles(actor=request.user, expected=etags.expected_versions(request), **values)
        return _answer(request.user, row)


def _answer(user: User, row: UserDotfiles | None) -> Response:
    shown = row or {"url": "", "ref": "", "secret": "", "changed_at": None}
    headers = etags.headers_of(row or UserDotfiles(owner=user))
    return Response(DotfilesSerializer(shown).data, headers=headers)


urlpatterns = routes("me/dotfiles", Dotfiles, "me-dotfiles")
