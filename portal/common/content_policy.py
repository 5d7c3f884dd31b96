"""Sets `Content-Security-Policy`, built once instead of per response, and `Permissions-Policy`."""

from __future__ import annotations

from csp.middleware import HEADER, CSPMiddleware
from django.http import HttpRequest, HttpResponseBase

from portal.common.front_door import PERMISSIONS_POLICY

# django-csp attributes that give a response or view its own policy.
_POLICY_ATTRIBUTES = ("_csp_config", "_csp_update", "_csp_replace", "_csp_exempt")


class ContentPolicyMiddleware(CSPMiddleware):
    """CSPMiddleware that caches the default policy.

    django-csp builds the header of responses with their own policy.
    """

    _usual: str | None = None

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response["Permissions-Policy"] = PERMISSIONS_POLICY
        own = HEADER in response or any(hasattr(response, name) for name in _POLICY_ATTRIBUTES)
        if own or getattr(request, "_csp_nonce", None) is not None:
            return super().process_response(request, response)
        if self._usual is None:
            answered = super().process_response(request, response)
            self._usual = answered.get(HEADER, "")
            return answered
        if self._usual:
            response[HEADER] = self._usual
        return response
