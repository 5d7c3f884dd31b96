"""What every endpoint of the REST API shares: the base view, pages, filters, problems, documentation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import SuspiciousOperation
from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.signals import got_request_exception
from django.db import DataError
from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path
from django.views.decorators.csrf import csrf_exempt
from django_filters import rest_framework as filters  # type: ignore[import-untyped]
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import exceptions, generics, mixins, renderers, serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User

from portal.common.errors import InvalidInput, PortalError
from portal.common.pagination import CursorPagination
from portal.common.problems import CONTENT_TYPE, document, plain_response

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])

SESSION_OR_TOKEN = (401, 403)

if TYPE_CHECKING:

    class UserRequest(Request):
        """A request whose user is signed in, which permissions have seen to."""

        user: User

else:
    UserRequest = Request


class PreconditionFailed(PortalError):
    """The client's `If-Match` names another version than the present one."""

    code = "precondition_failed"
    status = 412
    title = "Changed meanwhile"


class ProblemSerializer(serializers.Serializer[Any]):
    """A problem (RFC 9457)."""

    type = serializers.CharField(help_text="`urn:berth:problem:` and the code")
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField(help_text="Stable; for programs.")
    detail = serializers.CharField(help_text="A sentence for people.")
    next_action = serializers.CharField(required=False, help_text="What to do about it.")
    instance = serializers.CharField(required=False)
    request_id = serializers.CharField(required=False, help_text="Tell it to an operator.")
    errors = serializers.DictField(  # type: ignore[assignment]
        required=False, help_text="Fields, and the sentences about each."
    )


class StrictSerializer(serializers.Serializer[Any]):
    """A request's body. A field that nobody knows is a mistake that should not pass in silence."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = [str(key) for key in data if key not in self.fields]
            if unknown:
                known = ", ".join(self.fields)
                raise serializers.ValidationError(
                    {
                        key[:60].encode(errors="replace").decode(): [f"Unknown field. Known: {known}."]
                        for key in unknown[:10]
                    }
                )
        return super().to_internal_value(data)


class Pages(CursorPagination):
    """Cursor pages that refuse what they do not understand."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        try:
            return super().paginate_queryset(queryset, request, view)
        except exceptions.NotFound:
            raise _bad_cursor() from None
        except (ValueError, TypeError, OverflowError, DataError, DjangoValidationError) as error:
            if self.cursor_query_param in request.query_params:
                raise _bad_cursor() from error
            raise

    def get_page_size(self, request: Request) -> int | None:
        given = request.query_params.get(self.page_size_query_param or "")
        if given is None:
            return self.page_size
        if given.isascii() and given.isdigit() and len(given) < 5 and 1 <= int(given) <= self.max_page_size:
            return int(given)
        sentence = f"Choose a number from 1 to {self.max_page_size}."
        raise InvalidInput(
            "The page size is not valid.", next_action=sentence, errors={"page_size": [sentence]}
        )


def _bad_cursor() -> InvalidInput:
    return InvalidInput(
        "This cursor is not valid.",
        next_action="Follow the “next” link of a page, or begin without a cursor.",
        errors={"cursor": ["Take it from a “next” or “previous” link."]},
    )


class ApiView(APIView):
    """One endpoint. `scopes` says which scope a token needs; `query_params` which parameters exist."""

    scopes: ClassVar[Mapping[str, str]]
    query_params: ClassVar[frozenset[str]] = frozenset()
    request: UserRequest

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        known = self.known_params()
        unknown = [name for name in request.query_params if name not in known]
        if unknown:
            words = f"Known: {', '.join(sorted(known))}." if known else "There are none here."
            raise InvalidInput(
                "There is no such query parameter.",
                next_action=words,
                errors={name[:60]: [f"Unknown parameter. {words}"] for name in unknown[:10]},
            )

    def known_params(self) -> frozenset[str]:
        return self.query_params

    def handle_exception(self, exc: Exception) -> Response:
        try:
            return super().handle_exception(exc)
        except SuspiciousOperation as error:
            return _problem(400, "bad_request", str(error), self.request)
        except Exception as error:
            # Reported as Django reports it, so that logs, tests and monitors see it; answered in our form.
            got_request_exception.send(sender=type(self), request=self.request._request)
            log.error("%s %s failed", self.request.method, self.request.path, exc_info=error)
            return _problem(
                500,
                "internal_error",
                "Something went wrong inside the portal.",
                self.request,
                next_action="Try again; if it stays, tell an operator the request_id.",
            )


class ListView(ApiView, mixins.ListModelMixin, generics.GenericAPIView[Any]):
    """A list in cursor pages. `ordering` begins with a field of the row itself and ends with a unique one."""

    pagination_class = Pages
    ordering: ClassVar[tuple[str, ...]]

    def known_params(self) -> frozenset[str]:
        filterset: type[filters.FilterSet] | None = getattr(self, "filterset_class", None)
        names = filterset.base_filters.keys() if filterset else ()
        return self.query_params | {"cursor", "page_size", *names}

    def filter_queryset(self, queryset: Any) -> Any:
        return super().filter_queryset(queryset).order_by(*self.ordering)

    @property
    def paginator(self) -> Any:
        if not hasattr(self, "_paginator"):
            pages: Any = self.pagination_class()
            pages.ordering = self.ordering
            self._paginator = pages
        return self._paginator

    def documenting(self) -> bool:
        """Whether the OpenAPI generator asks, without a user."""
        return bool(getattr(self, "swagger_fake_view", False))


class WhoeverSignedIn(IsAuthenticated):
    """Any token, whatever its scopes."""


def _problem(status: int, code: str, detail: str, request: Request, **extra: Any) -> Response:
    response = Response(document(status, code, detail, request, **extra), status=status)
    response.content_type = CONTENT_TYPE
    response.exception = True
    return response


# Nothing is done here, so nothing needs protection; and 404 is the answer to a POST too.
@login_not_required
@csrf_exempt
def unknown_endpoint(request: HttpRequest, **_: Any) -> JsonResponse:
    """404 in the API's form for every path below /api/ that is none of its own."""
    return plain_response(
        404,
        "not_found",
        "There is no such endpoint.",
        request,
        next_action="See /api/v1/docs/ for those that there are.",
    )


def routes(route: str, view: type[APIView], name: str) -> list[URLPattern]:
    """The endpoint with and without a slash at its end; only the latter is documented."""
    return [
        path(route, view.as_view(), name=name),
        path(f"{route}/", view.as_view(schema=None)),
    ]


def operation(
    summary: str,
    *,
    responses: Mapping[Any, Any],
    errors: Iterable[int] = (),
    request: Any = None,
    description: str = "",
    parameters: Iterable[OpenApiParameter] = (),
    **more: Any,
) -> Callable[[F], F]:
    """Document one method. Errors are problems; those of authentication come by themselves."""
    problems = {(status, CONTENT_TYPE): ProblemSerializer for status in sorted({*SESSION_OR_TOKEN, *errors})}
    return extend_schema(
        summary=summary,
        description=description or summary,
        request=request,
        responses={**responses, **problems},
        parameters=list(parameters),
        **more,
    )


class PlainTextRenderer(renderers.BaseRenderer):
    """Text as it is; problems, which come as dictionaries, as JSON."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, context: Any = None) -> bytes:
        if isinstance(data, str):
            return data.encode(errors="replace")
        return renderers.JSONRenderer().render(data)
