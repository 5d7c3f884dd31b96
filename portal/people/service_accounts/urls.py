from __future__ import annotations

from django.urls import path

from portal.people.service_accounts import rule_views, views

app_name = "service_accounts"
ONE = "teams/<slug:slug>/service-accounts/<str:username>/"
urlpatterns = [
    path("teams/<slug:slug>/service-accounts/", views.listing, name="list"),
    path(ONE, views.account, name="account"),
    path(f"{ONE}tokens/", views.token_create, name="token-create"),
    path(f"{ONE}tokens/<uuid:token_id>/rotate/", views.token_rotate, name="token-rotate"),
    path(f"{ONE}trust-rules/", rule_views.listing, name="trust-rules"),
    path(f"{ONE}trust-rules/check/", rule_views.check, name="check-trust-rules"),
    path(f"{ONE}trust-rules/<uuid:trust_id>/delete/", rule_views.delete, name="delete-trust-rule"),
    path(f"{ONE}deactivate/", views.deactivate, name="deactivate"),
    path(f"{ONE}reactivate/", views.reactivate, name="reactivate"),
    path(f"{ONE}delete/", views.delete, name="delete"),
]
