"""URLs of machine pages."""

from __future__ import annotations

from django.urls import path

from portal.fleet.machines import views

app_name = "machines"
OF_POOL = "pools/<slug:slug>/machines/"
urlpatterns = [
    path(OF_POOL, views.listing, name="list"),
    path(f"{OF_POOL}add/", views.token_create, name="token-create"),
    path(f"{OF_POOL}tokens/<uuid:join_token_id>/revoke/", views.token_revoke, name="token-revoke"),
    path("machines/<uuid:machine_id>/revoke/", views.revoke, name="revoke"),
]
