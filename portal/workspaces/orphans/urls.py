"""Pages of what nobody owns."""

from __future__ import annotations

from django.urls import path

from portal.workspaces.orphans import views

app_name = "orphans"
urlpatterns = [
    path("left-over/", views.listing, name="list"),
    path("left-over/look/", views.look, name="look"),
    path("left-over/<uuid:orphan_id>/remove/", views.remove, name="remove"),
]
