from __future__ import annotations

from django.urls import path

from portal.people.accounts import security_views, team_views, token_views, user_views, views
from portal.people.accounts.invitations.views import invite_many
from portal.people.accounts.mfa import sign_in_views as steps
from portal.people.accounts.mfa import views as mfa

app_name = "accounts"
urlpatterns = [
    path("sign-in/", views.sign_in, name="sign-in"),
    path("sign-in/second-factor/", steps.second_factor, name="second-factor"),
    path("sign-in/passkey/", steps.passkey, name="passkey-sign-in"),
    path("sign-in/forgotten/", views.forgot_password, name="forgotten"),
    path("welcome/<uuid:user_id>/<str:link>/", views.welcome, name="welcome"),
    path("sign-out/", views.sign_out, name="sign-out"),
    path("theme/", views.theme, name="theme"),
    path("account/", views.account, name="account"),
    path("account/email/", views.email, name="email"),
    path("account/delete/", views.account_delete, name="account-delete"),
    path("account/sessions/revoke/", views.sessions_end, name="sessions-revoke"),
    path("account/sessions/<uuid:session_id>/revoke/", views.session_end, name="session-revoke"),
    path("account/security/", security_views.security, name="security"),
    path("account/confirm/", mfa.confirm_identity, name="confirm"),
    path("account/two-step/", mfa.two_step, name="two-step"),
    path("account/two-step/app/", mfa.app, name="two-step-app"),
    path("account/two-step/app/remove/", mfa.app_remove, name="two-step-app-remove"),
    path("account/two-step/codes/", mfa.codes, name="two-step-codes"),
    path("account/two-step/codes/download/", mfa.codes_download, name="two-step-codes-download"),
    path("account/two-step/passkeys/add/", mfa.passkey_add, name="passkey-add"),
    path("account/two-step/passkeys/options/", mfa.passkey_options, name="passkey-options"),
    path("account/two-step/passkeys/<int:passkey_id>/", mfa.passkey, name="passkey"),
    path("account/two-step/passkeys/<int:passkey_id>/remove/", mfa.passkey_remove, name="passkey-remove"),
    path("account/notices/", views.notices, name="notices"),
    path("account/tokens/", token_views.tokens, name="tokens"),
    path("account/tokens/<uuid:token_id>/revoke/", token_views.token_revoke, name="token-revoke"),
    path("tokens/", token_views.site_tokens, name="site-tokens"),
    path("users/", user_views.people, name="users"),
    path("users/<str:username>/", user_views.person, name="user"),
    path("users/<str:username>/team/", user_views.user_team, name="user-team"),
    path("users/<str:username>/invite/", user_views.user_invite, name="user-invite"),
    path("users/<str:username>/deactivate/", user_views.user_deactivate, name="user-deactivate"),
    path("users/<str:username>/reactivate/", user_views.user_reactivate, name="user-reactivate"),
    path("users/<str:username>/reset-password/", user_views.user_reset, name="user-reset"),
    path("users/<str:username>/reset-mfa/", user_views.user_reset_mfa, name="user-reset-mfa"),
    path("users/<str:username>/sessions/revoke/", user_views.user_end_sessions, name="user-sessions-revoke"),
    path("users/<str:username>/delete/", user_views.user_delete, name="user-delete"),
    path("teams/", views.teams, name="teams"),
    path("teams/<slug:slug>/rename/", team_views.rename, name="team-rename"),
    path("teams/<slug:slug>/invite/", invite_many, name="team-invite"),
    path("teams/<slug:slug>/member-shares/", team_views.member_shares, name="team-member-shares"),
    path("teams/<slug:slug>/archive/", team_views.archive, name="team-archive"),
    path("teams/<slug:slug>/restore/", team_views.restore, name="team-restore"),
    path("teams/<slug:slug>/delete/", team_views.delete, name="team-delete"),
    path("teams/<slug:slug>/egress/", team_views.network, name="team-egress"),
    path(
        "teams/<slug:slug>/egress/versions/<int:number>/restore/",
        team_views.network_restore,
        name="team-egress-restore",
    ),
    path("teams/<slug:slug>/members/<str:username>/role/", views.member_role, name="member-role"),
    path("teams/<slug:slug>/members/<str:username>/revoke/", views.member_remove, name="member-revoke"),
]
