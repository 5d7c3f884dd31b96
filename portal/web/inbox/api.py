"""REST API of the inbox."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, UserRequest, operation, routes
from portal.common.errors import InvalidInput
from portal.common.htmx import public_url
from portal.common.pagination import Pages, whole_number
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.web.inbox import selectors
from portal.web.inbox.items import ItemKind, SortKey


class InboxItemSerializer(serializers.Serializer[Any]):
    """A decision or problem that waits for you. `url` is the path of the page for the decision."""

    id = serializers.CharField(
        source="key.id", help_text="Identifier `<what>-<id>` of a request, device, node, pool or token."
    )
    kind = serializers.ChoiceField(ItemKind.choices, help_text="Kind of decision or problem.")
    urgent = serializers.BooleanField(help_text="Whether it is urgent.")
    since = serializers.DateTimeField(source="key.since", help_text="Time since which it has been waiting.")
    due_at = serializers.DateTimeField(allow_null=True, help_text="Time of expiry or start; null for none.")
    who = serializers.CharField(help_text="Name of the requester, or of the thing with the problem.")
    title = serializers.CharField(help_text="Title of the item.")
    detail = serializers.CharField(allow_blank=True, help_text="Details, for people.")
    reason = serializers.CharField(help_text="Reason why it waits for you, as a sentence.")
    url = serializers.CharField(help_text="Path of the page in the portal.")
    simulated = serializers.BooleanField()


class InboxPageSerializer(serializers.Serializer[Any]):
    """A page of the inbox."""

    count = serializers.IntegerField(help_text="Number of items of all kinds.")
    next = serializers.URLField(allow_null=True, help_text="URL of the next page; null on the last page.")
    previous = serializers.URLField(
        allow_null=True, help_text="URL of the previous page; null on the first page."
    )
    results = InboxItemSerializer(many=True, help_text="The items, in list order.")


class Inbox(ApiView):
    """Lists inbox items of several sources, without a single queryset to paginate."""

    tag = "requests"
    operation_ids = {"get": "listInbox"}
    scopes = {"*": Scope.INBOX_READ}
    query_params = frozenset({"kind", "cursor", "page_size"})

    @operation(
        "List your inbox",
        description=(
            "Lists open quota requests, reservations, requests to join, capacity problems and expiring "
            "tokens. Urgent items first, then the oldest. Decided items are not listed."
        ),
        responses={200: InboxPageSerializer},
        errors=[400],
        parameters=[
            OpenApiParameter("kind", str, enum=ItemKind.values, description="Only items of these kinds."),
            OpenApiParameter("cursor", str, description="Cursor from `next`."),
            OpenApiParameter("page_size", int, description="Number of items per page, up to 200."),
        ],
    )
    def get(self, request: UserRequest) -> Response:
        params = request.query_params
        kind = params.get("kind", "")
        if kind and kind not in ItemKind.values:
            reason = Reason(CommonCode.CHOOSE_ONE_OF, {"known": list(ItemKind.values)})
            raise InvalidInput(reason, errors={"kind": [reason]})
        size = _size(params.get("page_size"))
        keys = selectors.keys(request.user, [kind] if kind else [])
        after = _after(params.get("cursor"))
        remaining_keys = [key for key in keys if after is None or key > after]
        page = remaining_keys[:size]
        query = {name: params[name] for name in ("kind", "page_size") if name in params}
        data = {
            "count": selectors.count(request.user),
            "next": _link(query, page[-1]) if len(remaining_keys) > size else None,
            "previous": None,
            "results": selectors.items(request.user, page),
        }
        return Response(InboxPageSerializer(data).data)


def _size(text: str | None) -> int:
    if text is None:
        return Pages.page_size
    return whole_number(text, CommonCode.PAGE_SIZE_INVALID, field="page_size", maximum=Pages.max_page_size)


def _link(params: dict[str, str], last: SortKey) -> str:
    text = "|".join(("1" if last.later else "0", last.since.isoformat(), last.source, last.pk))
    cursor = base64.urlsafe_b64encode(text.encode()).decode()
    return f"{public_url()}/api/v1/inbox?{urlencode({**params, 'cursor': cursor})}"


def _after(cursor: str | None) -> SortKey | None:
    """Return the key in a cursor. Raises `InvalidInput`."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
        later, since, source, pk = text.split("|")
        moment = datetime.fromisoformat(since)
        if moment.tzinfo is None:
            raise ValueError(since)
        return SortKey(later == "1", moment, source, pk)
    except (ValueError, binascii.Error):
        raise InvalidInput(
            Reason(CommonCode.CURSOR_INVALID), errors={"cursor": [_("Use a value from a “next” link.")]}
        ) from None


urlpatterns = routes("inbox", Inbox, "inbox")
