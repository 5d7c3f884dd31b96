from __future__ import annotations

from django.urls import path

from portal.fleet.announcements import views

app_name = "announcements"
urlpatterns = [
    path("announcements/", views.announcements, name="list"),
    path("announcements/<uuid:announcement_id>/", views.edit, name="edit"),
    path("announcements/<uuid:announcement_id>/end/", views.end, name="end"),
    path("announcements/<uuid:announcement_id>/delete/", views.delete, name="delete"),
    path("announcements/<uuid:announcement_id>/dismiss/", views.dismiss, name="dismiss"),
]
