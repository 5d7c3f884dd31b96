"""All of the portal's URLs; each app names its own."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("agent/v1/", include("portal.workspaces.agent_api")),
]
