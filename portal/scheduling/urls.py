from __future__ import annotations

from django.urls import path

from portal.scheduling import views

app_name = "scheduling"
urlpatterns = [
    path("queue/", views.queue, name="queue"),
    path("workspaces/<uuid:workspace_id>/move/cancel/", views.cancel_move, name="cancel-move"),
]
