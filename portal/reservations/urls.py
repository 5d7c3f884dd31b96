from __future__ import annotations

from django.urls import path

from portal.reservations import views

app_name = "reservations"
urlpatterns = [
    path("calendar/", views.board, name="calendar"),
    path("calendar/<uuid:reservation_id>/", views.reservation, name="reservation"),
]
