from __future__ import annotations

from django.urls import path

from portal.notify.channels import views

app_name = "channels"
urlpatterns = [
    path("account/channels/", views.own_channels, name="own"),
    path("teams/<slug:slug>/channels/", views.team, name="team"),
    path("channels/<uuid:channel_id>/", views.detail, name="detail"),
    path("channels/<uuid:channel_id>/test/", views.test, name="test"),
    path("channels/<uuid:channel_id>/switch/", views.switch, name="switch"),
    path("channels/<uuid:channel_id>/delete/", views.delete, name="delete"),
]
