from __future__ import annotations

from django.urls import path

from portal.notify.webhooks import views

app_name = "webhooks"
urlpatterns = [
    path("webhooks/", views.site, name="site"),
    path("teams/<slug:slug>/webhooks/", views.team, name="team"),
    path("webhooks/<uuid:webhook_id>/", views.detail, name="detail"),
    path("webhooks/<uuid:webhook_id>/test/", views.test, name="test"),
    path("webhooks/<uuid:webhook_id>/rotate-secret/", views.rotate, name="rotate-secret"),
    path("webhooks/<uuid:webhook_id>/switch/", views.switch, name="switch"),
    path("webhooks/<uuid:webhook_id>/delete/", views.delete, name="delete"),
    path(
        "webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver/",
        views.redeliver,
        name="redeliver",
    ),
]
