from __future__ import annotations

from django.urls import path

from portal.people.join_requests import views

app_name = "join_requests"
urlpatterns = [
    path("join/", views.teams, name="teams"),
    path("join/teams/<slug:slug>/", views.ask, name="ask"),
    path("join/requests/<uuid:join_id>/", views.request_page, name="request"),
    path("join/requests/<uuid:join_id>/decide/", views.decide, name="decide"),
    path("join/requests/<uuid:join_id>/cancel/", views.cancel, name="cancel"),
]
