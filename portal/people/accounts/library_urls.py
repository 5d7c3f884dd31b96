"""Named routes that django-allauth redirects to. It has no other routes here."""

from __future__ import annotations

from django.urls import path

from portal.people.accounts import views
from portal.people.accounts.mfa.sign_in_views import second_factor

urlpatterns = [
    path("sign-in/", views.sign_in, name="account_login"),
    path("sign-in/second-factor/", second_factor, name="mfa_authenticate"),
]
