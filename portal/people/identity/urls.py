from __future__ import annotations

from django.urls import path

from portal.people.identity import sign_in_views, views

app_name = "identity"
urlpatterns = [
    path("sign-in/by/<slug:idp>/", sign_in_views.begin, name="begin"),
    path("sign-in/oidc/<slug:idp>/callback/", sign_in_views.oidc_callback, name="oidc-callback"),
    path("sign-in/oidc/<slug:idp>/signed-out/", sign_in_views.oidc_signed_out, name="oidc-signed-out"),
    path("sign-in/oidc/<slug:idp>/left/", sign_in_views.offer_provider_sign_out, name="left"),
    path("sign-in/saml/<slug:idp>/acs/", sign_in_views.saml_acs, name="saml-acs"),
    path("sign-in/saml/<slug:idp>/finish/", sign_in_views.saml_finish, name="saml-finish"),
    path("sign-in/saml/<slug:idp>/metadata/", sign_in_views.saml_metadata, name="saml-metadata"),
    path("sign-in-providers/", views.providers, name="providers"),
    path("sign-in-providers/<slug:idp>/", views.provider, name="provider"),
    path("sign-in-providers/<slug:idp>/test/", sign_in_views.test, name="test"),
    path("sign-in-providers/<slug:idp>/tested/", sign_in_views.show_test_result, name="tested"),
    path("sign-in-providers/<slug:idp>/link/", views.link, name="link"),
    path("sign-in-providers/<slug:idp>/unlink/<str:username>/", views.unlink, name="unlink"),
]
