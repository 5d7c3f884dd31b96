from __future__ import annotations

from django.urls import path

from portal.quota.limits import views

app_name = "quotas"
urlpatterns = [
    path("quotas/limits/", views.board, name="limits"),
    path("quotas/teams/<slug:slug>/caps/", views.team_caps, name="team-caps"),
]
