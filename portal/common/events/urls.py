from __future__ import annotations

from django.urls import path

from portal.common.events import audit_views, views

app_name = "events"
urlpatterns = [
    path("audit/", audit_views.audit, name="audit"),
    path("audit/export/<slug:form>/", audit_views.export, name="audit-export"),
    path("notifications/", views.notifications, name="notifications"),
    path("notifications/bell/", views.bell, name="bell"),
    path("notifications/read/", views.read_all, name="read-all"),
    path("notifications/<int:notification_id>/read/", views.read, name="read"),
]
