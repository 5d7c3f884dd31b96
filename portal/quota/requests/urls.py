from __future__ import annotations

from django.urls import path

from portal.quota.requests.views import requests, rules

app_name = "quota_requests"
urlpatterns = [
    path("quotas/ask/", requests.ask, name="ask"),
    path("quotas/approvals/", requests.approvals, name="approvals"),
    path("quotas/requests/<uuid:request_id>/", requests.detail, name="request"),
    path("quotas/requests/<uuid:request_id>/decide/", requests.decide, name="decide"),
    path("quotas/requests/<uuid:request_id>/cancel/", requests.cancel, name="cancel"),
    path("quotas/grants/<uuid:grant_id>/revoke/", requests.revoke, name="revoke"),
    path("quotas/rules/", rules.rules, name="rules"),
    path("quotas/rules/<uuid:rule_id>/", rules.change_rule, name="rule"),
    path("quotas/delegations/", rules.delegate, name="delegations"),
    path("quotas/delegations/<uuid:delegation_id>/revoke/", rules.end_delegation, name="delegation-revoke"),
]
