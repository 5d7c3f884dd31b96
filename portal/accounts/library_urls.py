"""The pages to which django-allauth itself leads, under the names that it knows; it has no others here."""

from __future__ import annotations

from django.urls import path

from portal.accounts import views

urlpatterns = [path("sign-in/", views.sign_in, name="account_login")]
