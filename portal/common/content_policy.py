"""The header `Content-Security-Policy`, put together once instead of for each answer."""

from __future__ import annotations

from csp.middleware import HEADER, CSPMiddleware
from django.http import HttpRequest, HttpResponseBase

# What an answer or its view may carry for django-csp, which then makes a policy of its own.
_OF_ITS_OWN = ("_csp_config", "_csp_update", "_csp_replace", "_csp_exempt")


class ContentPolicyMiddleware(CSPMiddleware):
    """django-csp's, which remembers the policy of answers that ask for none of their own."""

    _usual: str | None = None

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        own = HEADER in response or any(hasattr(response, name) for name in _OF_ITS_OWN)
        if own or getattr(request, "_csp_nonce", None) is not None:
            return super().process_response(request, response)
        if self._usual is None:
            answered = super().process_response(request, response)
            self._usual = answered.get(HEADER, "")
            return answered
        if self._usual:
            response[HEADER] = self._usual
        return response
