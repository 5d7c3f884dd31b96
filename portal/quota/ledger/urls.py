from __future__ import annotations

from django.urls import path

from portal.quota.ledger import views

app_name = "ledger"
urlpatterns = [
    path("quotas/teams/<slug:slug>/ledger/", views.ledger, name="ledger"),
    path("quotas/teams/<slug:slug>/budget/", views.budget, name="budget"),
]
