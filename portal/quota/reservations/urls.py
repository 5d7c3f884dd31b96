from __future__ import annotations

from django.urls import path

from portal.quota.reservations import permission_views, views

app_name = "reservations"
urlpatterns = [
    path("calendar/", views.board, name="calendar"),
    path("calendar/permissions/", permission_views.permissions, name="permissions"),
    path("calendar/permissions/<uuid:permission_id>/revoke/", permission_views.end, name="permission-revoke"),
    path("calendar/<uuid:reservation_id>/", views.reservation, name="reservation"),
]
