"""Event streams of pages, served by the gateway process."""

from __future__ import annotations

from django.urls import path

from portal.workspaces import views

urlpatterns = [
    path("events/", views.events, name="events"),
    path("workspaces/<uuid:workspace_id>/events/", views.workspace_events, name="workspace-events"),
]
