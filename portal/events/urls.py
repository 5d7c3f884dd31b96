from __future__ import annotations

from django.urls import path

from portal.events import views

app_name = "events"
urlpatterns = [
    path("notifications/", views.notifications, name="notifications"),
    path("notifications/bell/", views.bell, name="bell"),
    path("notifications/read/", views.read_all, name="read-all"),
    path("notifications/<int:notification_id>/read/", views.read, name="read"),
]
