"""Named routes that django-allauth resolves while it builds SAML settings."""

from __future__ import annotations

from django.urls import path

from portal.people.identity import sign_in_views as views

urlpatterns = [
    path("sign-in/saml/<slug:idp>/acs/", views.saml_acs, name="saml_acs"),
    path("sign-in/saml/<slug:idp>/acs/", views.saml_acs, name="saml_sls"),
    path("sign-in/saml/<slug:idp>/metadata/", views.saml_metadata, name="saml_metadata"),
]
