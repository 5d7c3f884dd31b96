from __future__ import annotations

from django.urls import path

from portal.common.front_door import LARGE_BODY_PATH
from portal.embedded import views

app_name = "embedded"
urlpatterns = [
    path("healthz", views.healthz, name="healthz"),
    path("healthz/live", views.live, name="live"),
    path(LARGE_BODY_PATH.lstrip("/"), views.large_body, name="large_body"),
]
