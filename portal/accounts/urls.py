from __future__ import annotations

from django.urls import path

from portal.accounts import views

app_name = "accounts"
urlpatterns = [
    path("sign-in/", views.sign_in, name="sign-in"),
    path("sign-out/", views.sign_out, name="sign-out"),
    path("theme/", views.theme, name="theme"),
    path("account/", views.account, name="account"),
    path("account/notices/", views.notices, name="notices"),
    path("account/tokens/", views.tokens, name="tokens"),
    path("account/tokens/<uuid:token_id>/revoke/", views.token_revoke, name="token-revoke"),
    path("teams/", views.teams, name="teams"),
    path("teams/<slug:slug>/members/<str:username>/role/", views.member_role, name="member-role"),
    path("teams/<slug:slug>/members/<str:username>/remove/", views.member_remove, name="member-remove"),
]
