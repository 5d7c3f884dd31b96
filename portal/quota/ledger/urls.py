from __future__ import annotations

from django.urls import path

from portal.quota.ledger import views

app_name = "ledger"
urlpatterns = [
    path("account/gpu-hours/", views.own_use_page, name="own-use"),
    path("quotas/teams/<slug:slug>/ledger/", views.ledger, name="ledger"),
    path("quotas/teams/<slug:slug>/budget/", views.budget, name="budget"),
]
