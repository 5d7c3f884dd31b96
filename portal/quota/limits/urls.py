from __future__ import annotations

from django.urls import path

from portal.quota.limits import matrix_views, views

app_name = "quotas"
urlpatterns = [
    path("quotas/", matrix_views.matrix, name="matrix"),
    path("quotas/limits/", views.board, name="limits"),
    path("quotas/teams/<slug:slug>/caps/", views.team_caps, name="team-caps"),
]
