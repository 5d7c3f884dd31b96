from __future__ import annotations

from django.urls import path

from portal.web.inbox import views

app_name = "inbox"
urlpatterns = [
    path("inbox/", views.inbox, name="inbox"),
    path("inbox/badge/", views.badge, name="badge"),
]
