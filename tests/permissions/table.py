"""Expected responses of every URL by role. A URL that is missing here fails the test.

Columns: anonymous · charlie, an outsider · vic, a viewer of the team · dan, another member · bob, the owner
of the workspace · alice, an owner of the team · una, an auditor, whose tokens only read · olga, an operator ·
ada, an administrator (default: as olga) · the scope that a token needs.

Pages redirect anonymous users to sign-in (302); the REST API answers 401. Hidden objects are 404, visible but
forbidden actions 403. `~` means 200 or 503, as health depends on running services. Agents use their own
tokens, which no one has here.
"""

from __future__ import annotations

from dataclasses import dataclass

ACTORS = ("nobody", "charlie", "vic", "dan", "bob", "alice", "una", "olga", "ada")

TABLE = """
#                                                           nob cha vic dan bob ali una olg ada scope

# --- health ---
GET    healthz                                              ~   ~   ~   ~   ~   ~   ~   ~       -
GET    healthz/live                                         200 200 200 200 200 200 200 200   -
GET    gateway/large-body                                   401 204 204 204 204 204 204 204   -
GET    metrics                                              401 200 200 200 200 200 200 200   -
GET    metrics/gpus                                         401 200 200 200 200 200 200 200   -

# --- pages: documents ---
GET    docs/                                                302 200 200 200 200 200 200 200   -
GET    docs/search/                                         302 200 200 200 200 200 200 200   -
GET    docs/adr/                                            302 200 200 200 200 200 200 200   -
GET    docs/adr/<slug:name>/                                302 200 200 200 200 200 200 200   -
GET    docs/files/<path:path>                               302 200 200 200 200 200 200 200   -
GET    docs/<slug:name>/                                    302 200 200 200 200 200 200 200   -

# --- pages: account ---
GET    sign-in/                                             200 302 302 302 302 302 302 302   -
POST   sign-in/                                             200 302 302 302 302 302 302 302   -
GET    sign-in/second-factor/                               302 302 302 302 302 302 302 302   -
POST   sign-in/second-factor/                               302 302 302 302 302 302 302 302   -
GET    sign-in/passkey/                                     200 200 200 200 200 200 200 200   -
POST   sign-in/passkey/                                     302 302 302 302 302 302 302 302   -
POST   sign-out/                                            302 302 302 302 302 302 302 302   -
POST   theme/                                               302 302 302 302 302 302 302 302   -
GET    account/                                             302 200 200 200 200 200 200 200   -
POST   account/                                             302 400 400 400 400 400 400 400   -
GET    account/email/                                       302 302 302 302 302 302 302 302   -
POST   account/email/                                       302 400 400 400 400 400 400 400   -
GET    account/delete/                                      302 403 403 403 403 403 403 403 200 -
POST   account/delete/                                      302 403 403 403 403 403 403 403 302 -
GET    account/sessions/revoke/                                302 302 302 302 302 302 302 302   -
POST   account/sessions/revoke/                                302 302 302 302 302 302 302 302   -
GET    account/sessions/<uuid:session_id>/revoke/              302 302 302 302 302 302 302 302   -
POST   account/sessions/<uuid:session_id>/revoke/              302 404 404 404 302 404 404 404   -
GET    account/security/                                    302 200 200 200 200 200 200 200   -
GET    account/confirm/                                     302 200 200 200 200 200 200 200   -
POST   account/confirm/                                     302 403 403 403 403 403 403 403   -
GET    account/two-step/                                    302 200 200 200 200 200 200 200   -
GET    account/two-step/app/                                302 200 200 200 200 200 200 200   -
POST   account/two-step/app/                                302 400 400 400 400 400 400 400   -
GET    account/two-step/app/remove/                         302 200 200 200 200 200 200 200   -
POST   account/two-step/app/remove/                         302 302 302 302 302 302 302 302   -
GET    account/two-step/codes/                              302 200 200 200 200 200 200 200   -
POST   account/two-step/codes/                              302 302 302 302 200 302 302 302   -
GET    account/two-step/codes/download/                     302 302 302 302 302 302 302 302   -
POST   account/two-step/codes/download/                     302 200 200 200 200 200 200 200   -
GET    account/two-step/passkeys/add/                       302 200 200 200 200 200 200 200   -
POST   account/two-step/passkeys/add/                       302 400 400 400 400 400 400 400   -
GET    account/two-step/passkeys/options/                   302 404 404 404 404 404 404 404   -
GET    account/two-step/passkeys/<int:passkey_id>/          302 302 302 302 302 302 302 302   -
POST   account/two-step/passkeys/<int:passkey_id>/          302 404 404 404 302 404 404 404   -
GET    account/two-step/passkeys/<int:passkey_id>/remove/   302 404 404 404 200 404 404 404   -
POST   account/two-step/passkeys/<int:passkey_id>/remove/   302 404 404 404 302 404 404 404   -
GET    account/notices/                                     302 302 302 302 302 302 302 302   -
POST   account/notices/                                     302 302 302 302 302 302 302 302   -
GET    account/gpu-hours/                                   302 200 200 200 200 200 200 200   -
GET    account/tokens/                                      302 200 200 200 200 200 200 200   -
POST   account/tokens/                                      302 200 200 200 200 200 400 200   -
GET    account/tokens/<uuid:token_id>/revoke/               302 404 404 404 200 404 403 200   -
POST   account/tokens/<uuid:token_id>/revoke/               302 404 404 404 302 404 403 302   -

# --- pages: audit log ---
GET    audit/                                               302 403 403 403 403 403 200 403 200 -
GET    audit/export/<slug:form>/                            302 403 403 403 403 403 200 403 200 -

# --- REST: audit streams ---
GET    api/v1/audit-streams                                 401 403 403 403 403 403 200 403   200 audit:read

# --- pages: teams ---
GET    teams/                                               302 200 200 200 200 200 200 200   -
POST   teams/                                               302 403 403 403 403 403 403 302   -
POST   setup/hide/                                           302 403 403 403 403 403 403 403 302 -
GET    teams/<slug:slug>/                                   302 404 200 200 200 200 200 200   -
POST   teams/<slug:slug>/                                   302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/use/                               302 404 200 200 200 200 200 200   -
GET    teams/<slug:slug>/rename/                            302 302 302 302 302 302 302 302   -
POST   teams/<slug:slug>/rename/                            302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/invite/                            302 404 403 403 403 200 403 200   -
POST   teams/<slug:slug>/invite/                            302 404 403 403 403 200 403 200   -
GET    teams/<slug:slug>/member-shares/                     302 302 302 302 302 302 302 302   -
POST   teams/<slug:slug>/member-shares/                     302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/archive/                           302 404 403 403 403 200 403 200   -
POST   teams/<slug:slug>/archive/                           302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/restore/                           302 302 302 302 302 302 302 302   -
POST   teams/<slug:slug>/restore/                           302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/delete/                            302 404 403 403 403 403 403 200   -
POST   teams/<slug:slug>/delete/                            302 404 403 403 403 403 403 409   -
GET    teams/<slug:slug>/egress/                           302 404 200 200 200 200 200 200   -
POST   teams/<slug:slug>/egress/                           302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/egress/versions/<int:number>/restore/ 302 404 403 403 403 302 403 302 -
POST   teams/<slug:slug>/egress/versions/<int:number>/restore/ 302 404 403 403 403 302 403 302 -
GET    teams/<slug:slug>/members/<str:username>/role/       302 302 302 302 302 302 302 302   -
POST   teams/<slug:slug>/members/<str:username>/role/       302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/members/<str:username>/revoke/     302 404 403 200 403 200 403 200   -
POST   teams/<slug:slug>/members/<str:username>/revoke/     302 404 403 302 403 302 403 302   -

# --- pages: webhooks (of vision) ---
GET    webhooks/                                            302 403 403 403 403 403 200 200   -
POST   webhooks/                                            302 403 403 403 403 403 403 200   -
GET    teams/<slug:slug>/webhooks/                          302 404 403 403 403 200 200 200   -
POST   teams/<slug:slug>/webhooks/                          302 404 403 403 403 200 403 200   -
GET    webhooks/<uuid:webhook_id>/                          302 404 403 403 403 200 200 200   -
POST   webhooks/<uuid:webhook_id>/                          302 404 403 403 403 302 403 302   -
GET    webhooks/<uuid:webhook_id>/test/                     302 404 403 403 403 302 403 302   -
POST   webhooks/<uuid:webhook_id>/test/                     302 404 403 403 403 302 403 302   -
GET    webhooks/<uuid:webhook_id>/rotate-secret/                   302 404 403 403 403 302 403 302   -
POST   webhooks/<uuid:webhook_id>/rotate-secret/                   302 404 403 403 403 200 403 200   -
GET    webhooks/<uuid:webhook_id>/switch/                   302 404 403 403 403 302 403 302   -
POST   webhooks/<uuid:webhook_id>/switch/                   302 404 403 403 403 302 403 302   -
GET    webhooks/<uuid:webhook_id>/delete/                   302 404 403 403 403 200 403 200   -
POST   webhooks/<uuid:webhook_id>/delete/                   302 404 403 403 403 302 403 302   -
GET    webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver/ 302 404 403 403 403 302 403 302   -
POST   webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver/ 302 404 403 403 403 302 403 302   -

# --- pages: environments (of vision) ---
GET    environments/                                        302 200 200 200 200 200 200 200   -
GET    environments/new/                                    302 200 403 403 403 200 403 200   -
POST   environments/new/                                    302 400 403 403 403 400 403 400   -
GET    environments/<slug:slug>/                            302 404 200 200 200 200 200 200   -
GET    environments/<slug:slug>/edit/                       302 404 403 403 403 200 403 200   -
POST   environments/<slug:slug>/edit/                       302 404 403 403 403 400 403 400   -
GET    environments/<slug:slug>/build/                      302 404 403 403 403 302 403 302   -
POST   environments/<slug:slug>/build/                      302 404 403 403 403 302 403 302   -
GET    environments/<slug:slug>/versions/<int:number>/restore/ 302 404 403 403 403 302 403 302   -
POST   environments/<slug:slug>/versions/<int:number>/restore/ 302 404 403 403 403 302 403 302   -
GET    environments/<slug:slug>/builds/<uuid:build_id>/     302 404 200 200 200 200 200 200   -
GET    environments/<slug:slug>/builds/<uuid:build_id>/log/download/ 302 404 200 200 200 200 200 200   -
GET    environments/<slug:slug>/builds/<uuid:build_id>/cancel/ 302 404 403 403 403 302 403 302   -
POST   environments/<slug:slug>/builds/<uuid:build_id>/cancel/ 302 404 403 403 403 302 403 302   -
GET    environments/<slug:slug>/delete/                     302 404 403 403 403 200 403 200   -
POST   environments/<slug:slug>/delete/                     302 404 403 403 403 302 403 302   -

# --- pages: channels (bob's, which only he can see) ---
GET    account/channels/                                    302 200 200 200 200 200 200 200   -
POST   account/channels/                                    302 302 302 302 302 302 302 302   -
GET    teams/<slug:slug>/channels/                          302 404 403 403 403 200 200 200   -
POST   teams/<slug:slug>/channels/                          302 404 403 403 403 302 403 302   -
GET    channels/<uuid:channel_id>/                          302 404 404 404 200 404 404 404   -
POST   channels/<uuid:channel_id>/                          302 404 404 404 302 404 404 404   -
GET    channels/<uuid:channel_id>/test/                     302 404 404 404 302 404 404 404   -
POST   channels/<uuid:channel_id>/test/                     302 404 404 404 302 404 404 404   -
GET    channels/<uuid:channel_id>/switch/                   302 404 404 404 302 404 404 404   -
POST   channels/<uuid:channel_id>/switch/                   302 404 404 404 302 404 404 404   -
GET    channels/<uuid:channel_id>/delete/                   302 404 404 404 200 404 404 404   -
POST   channels/<uuid:channel_id>/delete/                   302 404 404 404 302 404 404 404   -

# --- pages: service accounts (of vision) ---
GET    tokens/                                              302 403 403 403 403 403 200 200   -
GET    teams/<slug:slug>/service-accounts/                  302 404 200 200 200 200 200 200   -
POST   teams/<slug:slug>/service-accounts/                  302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/service-accounts/<str:username>/   302 404 200 200 200 200 200 200   -
POST   teams/<slug:slug>/service-accounts/<str:username>/   302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/service-accounts/<str:username>/tokens/ 302 404 302 302 302 302 302 302   -
POST   teams/<slug:slug>/service-accounts/<str:username>/tokens/ 302 404 403 403 403 200 403 200   -
GET    teams/<slug:slug>/service-accounts/<str:username>/tokens/<uuid:token_id>/rotate/ 302 404 302 302 302 302 302 302   -
POST   teams/<slug:slug>/service-accounts/<str:username>/tokens/<uuid:token_id>/rotate/ 302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/service-accounts/<str:username>/deactivate/ 302 404 403 403 403 200 403 200   -
POST   teams/<slug:slug>/service-accounts/<str:username>/deactivate/ 302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/service-accounts/<str:username>/reactivate/ 302 404 302 302 302 302 302 302   -
POST   teams/<slug:slug>/service-accounts/<str:username>/reactivate/ 302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/service-accounts/<str:username>/delete/ 302 404 403 403 403 200 403 200   -
POST   teams/<slug:slug>/service-accounts/<str:username>/delete/ 302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/service-accounts/<str:username>/trust-rules/ 302 404 403 403 403 200 200 200   -
POST   teams/<slug:slug>/service-accounts/<str:username>/trust-rules/ 302 404 403 403 403 302 403 302   -
GET    teams/<slug:slug>/service-accounts/<str:username>/trust-rules/check/ 302 404 302 302 302 302 302 302   -
POST   teams/<slug:slug>/service-accounts/<str:username>/trust-rules/check/ 302 404 403 403 403 200 200 200   -
GET    teams/<slug:slug>/service-accounts/<str:username>/trust-rules/<uuid:trust_id>/delete/ 302 404 302 302 302 302 302 302   -
POST   teams/<slug:slug>/service-accounts/<str:username>/trust-rules/<uuid:trust_id>/delete/ 302 404 403 403 403 302 403 302   -

# --- joining a team (the request is iris's, to vision) ---
GET    join/                                                302 200 200 200 200 200 200 200   -
GET    join/teams/<slug:slug>/                              302 200 200 200 200 200 409 200   -
POST   join/teams/<slug:slug>/                              302 302 400 400 400 400 409 302   -
GET    join/requests/<uuid:join_id>/                        302 404 404 404 404 200 200 200   -
GET    join/requests/<uuid:join_id>/decide/                 302 404 404 404 404 302 302 302   -
POST   join/requests/<uuid:join_id>/decide/                 302 404 404 404 404 302 302 302   -
GET    join/requests/<uuid:join_id>/cancel/                 302 404 404 404 404 302 302 302   -
POST   join/requests/<uuid:join_id>/cancel/                 302 404 404 404 404 302 302 302   -
POST   api/v1/teams/<slug:slug>/join-requests               401 201 409 409 409 409 409 201   teams:write
GET    api/v1/join-requests                                 401 200 200 200 200 200 200 200   teams:read
GET    api/v1/join-requests/<uuid:join_id>                  401 404 404 404 404 200 200 200   teams:read
POST   api/v1/join-requests/<uuid:join_id>/approve          401 404 404 404 404 200 403 200   teams:write
POST   api/v1/join-requests/<uuid:join_id>/deny             401 404 404 404 404 200 403 200   teams:write
POST   api/v1/join-requests/<uuid:join_id>/cancel           401 404 404 404 404 403 403 403   -
GET    api/v1/joinable-teams                                401 200 200 200 200 200 200 200   teams:read

# --- pages: pools ---
GET    pools/                                               302 200 200 200 200 200 200 200   -
GET    pools/<slug:slug>/                                   302 200 200 200 200 200 200 200   -
GET    pools/<slug:slug>/use/                               302 200 200 200 200 200 200 200   -
GET    pools/<slug:slug>/machines/                          302 403 403 403 403 403 200 200   -
GET    pools/<slug:slug>/machines/add/                      302 403 403 403 403 403 403 302   -
POST   pools/<slug:slug>/machines/add/                      302 403 403 403 403 403 403 302   -
GET    pools/<slug:slug>/machines/tokens/<uuid:join_token_id>/revoke/ 302 403 403 403 403 403 403 302   -
POST   pools/<slug:slug>/machines/tokens/<uuid:join_token_id>/revoke/ 302 403 403 403 403 403 403 302   -
GET    machines/<uuid:machine_id>/revoke/                   302 403 403 403 403 403 403 200   -
POST   machines/<uuid:machine_id>/revoke/                   302 403 403 403 403 403 403 302   -
GET    machines/<uuid:machine_id>/delete/                   302 403 403 403 403 403 403 200   -
POST   machines/<uuid:machine_id>/delete/                   302 403 403 403 403 403 403 302   -
POST   pools/<slug:slug>/checks/                            302 403 403 403 403 403 403 302   -
GET    gpus/                                                302 200 200 200 200 200 200 200   -
GET    gpus/at/<slug:pool>/<str:node>/<int:index>/          302 302 302 302 302 302 302 302   -
GET    gpus/at/<slug:pool>/<str:node>/<int:index>/card/     302 200 200 200 200 200 200 200   -
GET    gpus/nodes/<uuid:node_id>/                           302 200 200 200 200 200 200 200   -
POST   gpus/nodes/<uuid:node_id>/                           302 403 403 403 403 403 403 302   -
GET    gpus/nodes/<uuid:node_id>/drain/                     302 403 403 403 403 403 403 200   -
POST   gpus/nodes/<uuid:node_id>/drain/                     302 403 403 403 403 403 403 302   -
GET    gpus/nodes/<uuid:node_id>/use/                       302 200 200 200 200 200 200 200   -
GET    gpus/nodes/<uuid:node_id>/location/                  302 403 403 403 403 403 403 200   -
POST   gpus/nodes/<uuid:node_id>/location/                  302 403 403 403 403 403 403 302   -
POST   gpus/nodes/<uuid:node_id>/check-joint/                     302 403 403 403 403 403 403 302   -
POST   gpus/nodes/<uuid:node_id>/check-link/                      302 403 403 403 403 403 403 302   -
GET    gpus/devices/<uuid:device_id>/                       302 200 200 200 200 200 200 200   -
POST   gpus/devices/<uuid:device_id>/                       302 403 403 403 403 403 403 302   -
GET    gpus/devices/<uuid:device_id>/drain/                 302 403 403 403 403 403 403 200   -
POST   gpus/devices/<uuid:device_id>/drain/                 302 403 403 403 403 403 403 302   -
GET    gpus/devices/<uuid:device_id>/reset/                 302 403 403 403 403 403 403 200   -
POST   gpus/devices/<uuid:device_id>/reset/                 302 403 403 403 403 403 403 302   -
GET    gpus/devices/<uuid:device_id>/use/                   302 200 200 200 200 200 200 200   -
GET    gpus/devices/<uuid:device_id>/checks/                302 302 302 302 302 302 302 302   -
POST   gpus/devices/<uuid:device_id>/checks/                302 403 403 403 403 403 403 302   -
GET    gpus/checks/<uuid:check_id>/                         302 200 200 200 200 200 200 200   -
POST   gpus/checks/<uuid:check_id>/                         302 403 403 403 403 403 403 302   -

# --- pages: workspaces ---
GET    .                                                    302 200 200 200 200 200 200 200   -
GET    events/                                              401 200 200 200 200 200 200 200   -
GET    overview/                                            302 403 403 403 403 403 200 200   -
GET    workspaces/                                          302 200 200 200 200 200 200 200   -
GET    workspaces/csv/                                      302 200 200 200 200 200 200 200   -
GET    workspaces/act/                                      302 302 302 302 302 302 302 302   -
POST   workspaces/act/                                      302 200 200 200 200 200 200 200   -
GET    workspaces/new/                                      302 200 200 200 200 200 200 200   -
POST   workspaces/new/                                      302 404 403 302 302 302 403 403   -
GET    workspaces/<uuid:workspace_id>/                      302 404 200 404 200 200 200 200   -
GET    workspaces/<uuid:workspace_id>/events/               401 404 200 404 200 200 200 200   -
GET    workspaces/<uuid:workspace_id>/use/                   302 404 200 404 200 200 200 200   -
GET    workspaces/<uuid:workspace_id>/logs/                  302 404 200 404 200 200 200 200   -
GET    workspaces/<uuid:workspace_id>/logs/download/         302 404 200 404 200 200 200 200   -
GET    workspaces/<uuid:workspace_id>/open/                 302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/start/                302 404 302 404 302 302 302 302   -
POST   workspaces/<uuid:workspace_id>/start/                302 404 302 404 302 302 302 302   -
GET    workspaces/<uuid:workspace_id>/stop/                 302 404 403 404 200 200 403 200   -
POST   workspaces/<uuid:workspace_id>/stop/                 302 404 302 404 302 302 302 302   -
GET    workspaces/<uuid:workspace_id>/extend/               302 404 302 404 302 302 302 302   -
POST   workspaces/<uuid:workspace_id>/extend/               302 404 302 404 302 302 302 302   -
GET    workspaces/<uuid:workspace_id>/keep/                 302 404 302 404 302 302 302 302   -
POST   workspaces/<uuid:workspace_id>/keep/                 302 404 302 404 302 302 302 302   -
GET    workspaces/<uuid:workspace_id>/move/cancel/          302 404 302 404 302 302 302 302   -
POST   workspaces/<uuid:workspace_id>/move/cancel/          302 404 403 404 403 403 403 302   -
GET    workspaces/<uuid:workspace_id>/release-gpu/          302 404 403 404 302 302 403 302   -
POST   workspaces/<uuid:workspace_id>/release-gpu/          302 404 302 404 302 302 302 302   -
GET    workspaces/<uuid:workspace_id>/attach-gpu/           302 404 403 404 302 302 403 302   -
POST   workspaces/<uuid:workspace_id>/attach-gpu/           302 404 302 404 302 302 302 302   -
GET    workspaces/<uuid:workspace_id>/resize/               302 404 403 404 200 200 403 200   -
POST   workspaces/<uuid:workspace_id>/resize/               302 404 403 404 400 400 403 400   -
GET    workspaces/<uuid:workspace_id>/delete/               302 404 403 404 200 200 403 200   -
GET    homes/                                               302 200 200 200 200 200 200 200   -
POST   homes/<int:home_id>/move/                            302 404 404 404 302 404 403 302   -
GET    homes/archived/                                      302 403 403 403 403 403 200 200   -
POST   homes/<int:home_id>/keep/                            302 404 404 404 302 404 403 302   -
POST   homes/<int:home_id>/restore/                         302 404 404 404 302 404 403 302   -
GET    homes/<int:home_id>/delete/                          302 403 403 403 403 403 403 403 409 -
POST   homes/<int:home_id>/delete/                          302 403 403 403 403 403 403 403 409 -
POST   homes/moves/<uuid:home_move_id>/cancel/              302 404 404 404 302 404 403 302   -
GET    homes/nodes/<uuid:node_id>/                          302 403 403 403 403 403 200 200   -
POST   homes/nodes/<uuid:node_id>/                          302 403 403 403 403 403 403 302   -
POST   homes/evacuations/<uuid:home_evacuation_id>/cancel/  302 403 403 403 403 403 403 302   -
GET    homes/lost/<uuid:lost_home_id>/recreate/           302 404 404 404 200 404 403 200   -
POST   homes/lost/<uuid:lost_home_id>/recreate/           302 404 404 404 302 404 403 302   -
POST   workspaces/<uuid:workspace_id>/delete/               302 404 302 404 302 302 302 302   -
GET    workspaces/<uuid:workspace_id>/packages/             302 404 403 404 200 403 403 403   -
GET    workspaces/<uuid:workspace_id>/packages/reset/       302 404 403 404 200 403 403 403   -
POST   workspaces/<uuid:workspace_id>/packages/reset/       302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/packages/reset/cancel/        302 404 403 404 302 403 403 403   -
POST   workspaces/<uuid:workspace_id>/packages/reset/cancel/        302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/packages/save/        302 404 403 404 403 403 403 403   -
POST   workspaces/<uuid:workspace_id>/packages/save/        302 404 403 404 403 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/                302 404 403 404 200 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/download/       302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/upload/         302 404 403 404 200 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/folder/         302 404 403 404 302 403 403 403   -
POST   workspaces/<uuid:workspace_id>/files/folder/         302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/rename/         302 404 403 404 200 403 403 403   -
POST   workspaces/<uuid:workspace_id>/files/rename/         302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/delete/         302 404 403 404 200 403 403 403   -
POST   workspaces/<uuid:workspace_id>/files/delete/         302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/archives/       302 404 403 404 200 403 403 403   -
POST   workspaces/<uuid:workspace_id>/files/archives/create/  302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id>/restore/ 302 404 403 404 200 403 403 403   -
POST   workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id>/restore/ 302 404 403 404 302 403 403 403   -
GET    workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id>/delete/ 302 404 403 404 200 403 403 403   -
POST   workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id>/delete/ 302 404 403 404 302 403 403 403   -
POST   workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id>/cancel/ 302 404 403 404 302 403 403 403   -

# --- REST: workspaces ---
GET    api/v1/workspaces                                    401 200 200 200 200 200 200 200   workspaces:read
POST   api/v1/workspaces                                    401 400 403 201 201 201 403 403   workspaces:write
POST   api/v1/workspaces/stop                               401 202 202 202 202 202 202 202   workspaces:write
POST   api/v1/workspaces/extend                             401 202 202 202 202 202 202 202   workspaces:write
POST   api/v1/workspaces/message                            401 202 202 202 202 202 202 202   workspaces:write
POST   api/v1/workspaces/delete                             401 202 202 202 202 202 202 202   workspaces:write
POST   api/v1/workspaces/preview                            401 200 200 200 200 200 200 200   workspaces:read
POST   api/v1/workspaces/move                               401 403 403 403 403 403 403 202   workspaces:write
POST   api/v1/workspaces/move/cancel                        401 403 403 403 403 403 403 202   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/move/cancel    401 404 403 404 403 403 403 409   workspaces:write
GET    api/v1/workspaces/<uuid:workspace_id>                401 404 200 404 200 200 200 200   workspaces:read
PATCH  api/v1/workspaces/<uuid:workspace_id>                401 404 403 404 200 200 403 200   workspaces:write
DELETE api/v1/workspaces/<uuid:workspace_id>                401 404 403 404 202 202 403 202   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/start          401 404 403 404 202 202 403 202   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/stop           401 404 403 404 202 202 403 202   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/extend         401 404 403 404 200 200 403 200   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/keep           401 404 403 404 200 200 403 200   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/release-gpu    401 404 403 404 409 409 403 409   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/attach-gpu     401 404 403 404 409 409 403 409   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/resize         401 404 403 404 202 202 403 202   workspaces:write
GET    api/v1/workspaces/<uuid:workspace_id>/efficiency     401 404 200 404 200 200 200 200   workspaces:read
GET    api/v1/workspaces/<uuid:workspace_id>/usage          401 404 200 404 200 200 200 200   workspaces:read
GET    api/v1/workspaces/<uuid:workspace_id>/activity       401 404 200 404 200 200 200 200   workspaces:read
GET    api/v1/reports/gpu-use                               401 403 403 403 403 403 200 200   quotas:read
GET    api/v1/reports/idle-gpus                             401 403 403 403 403 403 200 200   quotas:read
GET    api/v1/reclaim-policies                              401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/reclaim-policies                              401 403 403 403 403 403 403 201   quotas:write
POST   api/v1/reclaim-policies/preview                      401 403 403 403 403 403 403 200   quotas:write
GET    api/v1/reclaim-policies/<uuid:policy_id>             401 404 200 200 200 200 200 200   quotas:read
PATCH  api/v1/reclaim-policies/<uuid:policy_id>             401 404 403 403 403 200 403 200   quotas:write
DELETE api/v1/reclaim-policies/<uuid:policy_id>             401 404 403 403 403 204 403 204   quotas:write
GET    api/v1/reclaim-policies/<uuid:policy_id>/versions    401 404 403 403 403 200 200 200   quotas:read
POST   api/v1/reclaim-policies/<uuid:policy_id>/versions/<int:number>/restore 401 404 403 403 403 200 403 200 quotas:write
GET    api/v1/workspaces/<uuid:workspace_id>/events         401 404 200 404 200 200 200 200   workspaces:read
GET    api/v1/workspaces/<uuid:workspace_id>/events/stream  401 404 200 404 200 200 200 200   workspaces:read
GET    api/v1/workspaces/<uuid:workspace_id>/logs           401 404 200 404 200 200 200 200   workspaces:read
GET    api/v1/workspaces/<uuid:workspace_id>/logs/stream    401 404 200 404 200 200 200 200   workspaces:read
GET    api/v1/workspaces/<uuid:workspace_id>/packages       401 404 403 404 200 403 403 403   workspaces:read
POST   api/v1/workspaces/<uuid:workspace_id>/packages/reset 401 404 403 404 202 403 403 403   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/packages/reset/cancel 401 404 403 404 200 403 403 403   workspaces:write
POST   api/v1/workspaces/<uuid:workspace_id>/packages/save  401 404 403 404 403 403 403 403   environments:write
GET    api/v1/workspaces/<uuid:workspace_id>/files          401 404 403 404 200 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/folders  401 404 403 404 204 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/rename   401 404 403 404 204 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/delete   401 404 403 404 204 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/downloads 401 404 403 404 201 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/uploads  401 404 403 404 201 403 403 403   workspaces:connect
GET    api/v1/workspaces/<uuid:workspace_id>/files/archives 401 404 403 404 200 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/archives 401 404 403 404 409 403 403 403   workspaces:connect
GET    api/v1/workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id> 401 404 403 404 200 403 403 403   workspaces:connect
DELETE api/v1/workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id> 401 404 403 404 204 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id>/restore 401 404 403 404 409 403 403 403   workspaces:connect
POST   api/v1/workspaces/<uuid:workspace_id>/files/archives/<uuid:archive_id>/cancel 401 404 403 404 409 403 403 403   workspaces:connect
POST   api/v1/admission/preview                             401 400 403 200 200 200 403 403   catalog:read

# --- REST: the site as a file ---
GET    api/v1/site                                          401 403 403 403 403 403 200 403 200 site:read
POST   api/v1/site/plan                                     401 403 403 403 403 403 403 403 200 site:write
POST   api/v1/site/apply                                    401 403 403 403 403 403 403 403 200 site:write

# --- pages: announcements and maintenance ---
GET    announcements/                                       302 200 200 200 200 200 200 200   -
POST   announcements/                                       302 403 403 403 403 403 403 400   -
GET    announcements/<uuid:announcement_id>/                302 403 403 403 403 403 403 200   -
POST   announcements/<uuid:announcement_id>/                302 403 403 403 403 403 403 400   -
GET    announcements/<uuid:announcement_id>/end/            302 403 403 403 403 403 403 302   -
POST   announcements/<uuid:announcement_id>/end/            302 403 403 403 403 403 403 302   -
GET    announcements/<uuid:announcement_id>/delete/         302 403 403 403 403 403 403 200   -
POST   announcements/<uuid:announcement_id>/delete/         302 403 403 403 403 403 403 302   -
GET    announcements/<uuid:announcement_id>/dismiss/        302 302 302 302 302 302 302 302   -
POST   announcements/<uuid:announcement_id>/dismiss/        302 302 302 302 302 302 302 302   -
GET    maintenance/                                         302 403 403 403 403 403 403 200   -
POST   maintenance/                                         302 403 403 403 403 403 403 400   -
GET    maintenance/end/                                     302 403 403 403 403 403 403 302   -
POST   maintenance/end/                                     302 403 403 403 403 403 403 302   -
GET    pools/<slug:slug>/maintenance/                       302 403 403 403 403 403 403 200   -
POST   pools/<slug:slug>/maintenance/                       302 403 403 403 403 403 403 400   -
GET    pools/<slug:slug>/maintenance/end/                   302 403 403 403 403 403 403 302   -
POST   pools/<slug:slug>/maintenance/end/                   302 403 403 403 403 403 403 302   -

# --- pages: changes of pools ---
GET    pools/new/                                           302 403 403 403 403 403 403 200   -
POST   pools/new/                                           302 403 403 403 403 403 403 400   -
GET    pools/<slug:slug>/edit/                              302 403 403 403 403 403 403 200   -
POST   pools/<slug:slug>/edit/                              302 403 403 403 403 403 403 400   -
GET    pools/<slug:slug>/retire/                            302 403 403 403 403 403 403 302   -
POST   pools/<slug:slug>/retire/                            302 403 403 403 403 403 403 302   -
GET    pools/<slug:slug>/delete/                            302 403 403 403 403 403 403 200   -
POST   pools/<slug:slug>/delete/                            302 403 403 403 403 403 403 302   -
GET    orphans/                                           302 403 403 403 403 403 200 200   -
GET    orphans/refresh/                                      302 403 403 403 403 403 403 302   -
POST   orphans/refresh/                                      302 403 403 403 403 403 403 302   -
GET    orphans/<uuid:orphan_id>/delete/                   302 403 403 403 403 403 403 200   -
POST   orphans/<uuid:orphan_id>/delete/                   302 403 403 403 403 403 403 302   -
GET    rebalancing/                                         302 403 403 403 403 403 200 200   -
GET    rebalancing/<uuid:proposal_id>/apply/                302 403 403 403 403 403 403 200   -
POST   rebalancing/<uuid:proposal_id>/apply/                302 403 403 403 403 403 403 302   -
GET    rebalancing/<uuid:proposal_id>/dismiss/              302 403 403 403 403 403 403 302   -
POST   rebalancing/<uuid:proposal_id>/dismiss/              302 403 403 403 403 403 403 302   -
GET    pools/<slug:slug>/versions/<int:number>/restore/     302 403 403 403 403 403 403 302   -
POST   pools/<slug:slug>/versions/<int:number>/restore/     302 403 403 403 403 403 403 302   -

# --- pages: the catalog ---
GET    catalog/templates/                                   302 200 200 200 200 200 200 200   -
GET    catalog/templates/new/                               302 302 403 403 403 302 403 200   -
POST   catalog/templates/new/                               302 302 403 403 403 302 403 400   -
GET    catalog/templates/<slug:slug>/                       302 200 200 200 200 200 200 200   -
GET    catalog/templates/<slug:slug>/edit/                  302 403 403 403 403 403 403 200   -
POST   catalog/templates/<slug:slug>/edit/                  302 403 403 403 403 403 403 400   -
GET    catalog/templates/<slug:slug>/delete/                302 403 403 403 403 403 403 200   -
POST   catalog/templates/<slug:slug>/delete/                302 403 403 403 403 403 403 302   -
GET    catalog/templates/<slug:slug>/versions/<int:number>/restore/ 302 403 403 403 403 403 403 200 -
POST   catalog/templates/<slug:slug>/versions/<int:number>/restore/ 302 403 403 403 403 403 403 302 -
GET    catalog/completions/templates/                       302 200 200 200 200 200 200 200   -
GET    catalog/completions/flavors/                         302 200 200 200 200 200 200 200   -
GET    catalog/completions/environments/                    302 200 200 200 200 200 200 200   -
GET    catalog/completions/teams/                           302 200 200 200 200 200 200 200   -
GET    catalog/flavors/                                     302 200 200 200 200 200 200 200   -
GET    catalog/flavors/new/                                 302 403 403 403 403 403 403 200   -
POST   catalog/flavors/new/                                 302 403 403 403 403 403 403 400   -
GET    catalog/flavors/<slug:slug>/                         302 200 200 200 200 200 200 200   -
GET    catalog/flavors/<slug:slug>/edit/                    302 403 403 403 403 403 403 200   -
POST   catalog/flavors/<slug:slug>/edit/                    302 403 403 403 403 403 403 400   -
GET    catalog/flavors/<slug:slug>/delete/                  302 403 403 403 403 403 403 200   -
POST   catalog/flavors/<slug:slug>/delete/                  302 403 403 403 403 403 403 302   -
GET    catalog/flavors/<slug:slug>/versions/<int:number>/restore/ 302 403 403 403 403 403 403 200 -
POST   catalog/flavors/<slug:slug>/versions/<int:number>/restore/ 302 403 403 403 403 403 403 302 -
GET    reports/gpu-use/                                     302 302 403 403 403 302 200 200   -
GET    reports/gpu-use/csv/                                 302 403 403 403 403 403 200 200   -
GET    reports/idle-gpus/csv/                               302 403 403 403 403 403 200 200   -
GET    reclaim-policies/                                    302 200 200 200 200 200 200 200   -
GET    reclaim-policies/new/                                302 200 403 403 403 403 403 200   -
POST   reclaim-policies/new/                                302 400 403 403 403 403 403 302   -
GET    reclaim-policies/preview/                            302 403 403 403 403 403 403 200   -
GET    reclaim-policies/<uuid:policy_id>/                   302 404 200 200 200 200 200 200   -
GET    reclaim-policies/<uuid:policy_id>/edit/              302 404 403 403 403 200 403 200   -
POST   reclaim-policies/<uuid:policy_id>/edit/              302 404 403 403 403 302 403 302   -
GET    reclaim-policies/<uuid:policy_id>/delete/            302 404 403 403 403 200 403 200   -
POST   reclaim-policies/<uuid:policy_id>/delete/            302 404 403 403 403 302 403 302   -
GET    reclaim-policies/<uuid:policy_id>/versions/<int:number>/restore/ 302 404 403 403 403 200 403 200 -
POST   reclaim-policies/<uuid:policy_id>/versions/<int:number>/restore/ 302 404 403 403 403 302 403 302 -

# --- REST: announcements and maintenance ---
GET    api/v1/announcements                                 401 200 200 200 200 200 200 200   notices:read
POST   api/v1/announcements                                 401 403 403 403 403 403 403 201   pools:write
GET    api/v1/announcements/<uuid:announcement_id>          401 200 200 200 200 200 200 200   notices:read
PATCH  api/v1/announcements/<uuid:announcement_id>          401 403 403 403 403 403 403 200   pools:write
POST   api/v1/announcements/<uuid:announcement_id>/cancel   401 403 403 403 403 403 403 200   pools:write
POST   api/v1/announcements/<uuid:announcement_id>/dismiss  401 204 204 204 204 204 204 204   notices:write
DELETE api/v1/announcements/<uuid:announcement_id>          401 403 403 403 403 403 403 204   pools:write
GET    api/v1/maintenance                                   401 200 200 200 200 200 200 200   pools:read
PUT    api/v1/maintenance                                   401 403 403 403 403 403 403 200   pools:write
DELETE api/v1/maintenance                                   401 403 403 403 403 403 403 204   pools:write
GET    api/v1/pools/<slug:slug>/maintenance                 401 200 200 200 200 200 200 200   pools:read
PUT    api/v1/pools/<slug:slug>/maintenance                 401 403 403 403 403 403 403 200   pools:write
DELETE api/v1/pools/<slug:slug>/maintenance                 401 403 403 403 403 403 403 204   pools:write

# --- REST: changes of pools ---
POST   api/v1/pools                                         401 403 403 403 403 403 403 201   pools:write
PATCH  api/v1/pools/<slug:slug>                             401 403 403 403 403 403 403 200   pools:write
DELETE api/v1/pools/<slug:slug>                             401 403 403 403 403 403 403 409   pools:write

# --- REST: catalog ---
GET    api/v1/environments                                  401 200 200 200 200 200 200 200   environments:read
POST   api/v1/environments                                  401 400 403 403 403 201 403 201   environments:write
GET    api/v1/environments/<slug:slug>                      401 404 200 200 200 200 200 200   environments:read
PATCH  api/v1/environments/<slug:slug>                      401 404 403 403 403 200 403 200   environments:write
DELETE api/v1/environments/<slug:slug>                      401 404 403 403 403 204 403 204   environments:write
POST   api/v1/environments/<slug:slug>/preview              401 404 403 403 403 200 403 200   environments:write
GET    api/v1/environments/<slug:slug>/versions             401 404 200 200 200 200 200 200   environments:read
GET    api/v1/environments/<slug:slug>/versions/<int:number> 401 404 200 200 200 200 200 200   environments:read
POST   api/v1/environments/<slug:slug>/versions/<int:number>/restore 401 404 403 403 403 200 403 200   environments:write
GET    api/v1/environments/<slug:slug>/builds               401 404 200 200 200 200 200 200   environments:read
POST   api/v1/environments/<slug:slug>/builds               401 404 403 403 403 202 403 202   environments:write
GET    api/v1/environments/<slug:slug>/builds/<uuid:build_id> 401 404 200 200 200 200 200 200   environments:read
POST   api/v1/environments/<slug:slug>/builds/<uuid:build_id>/cancel 401 404 403 403 403 200 403 200   environments:write
GET    api/v1/environments/<slug:slug>/builds/<uuid:build_id>/log 401 404 200 200 200 200 200 200   environments:read
GET    api/v1/environments/<slug:slug>/builds/<uuid:build_id>/stream 401 404 200 200 200 200 200 200   environments:read
POST   api/v1/catalog/preview                               401 200 200 200 200 200 200 200   catalog:read
GET    api/v1/templates                                     401 200 200 200 200 200 200 200   catalog:read
GET    api/v1/templates/<slug:slug>                         401 200 200 200 200 200 200 200   catalog:read
POST   api/v1/templates                                     401 403 403 403 403 403 403 201   catalog:write
PATCH  api/v1/templates/<slug:slug>                         401 403 403 403 403 403 403 200   catalog:write
DELETE api/v1/templates/<slug:slug>                         401 403 403 403 403 403 403 409   catalog:write
GET    api/v1/templates/<slug:slug>/versions                401 403 403 403 403 403 200 200   catalog:read
POST   api/v1/templates/<slug:slug>/versions/<int:number>/restore 401 403 403 403 403 403 403 200 catalog:write
GET    api/v1/flavors                                       401 200 200 200 200 200 200 200   catalog:read
POST   api/v1/flavors                                       401 403 403 403 403 403 403 201   catalog:write
GET    api/v1/flavors/<slug:slug>                           401 200 200 200 200 200 200 200   catalog:read
PATCH  api/v1/flavors/<slug:slug>                           401 403 403 403 403 403 403 200   catalog:write
DELETE api/v1/flavors/<slug:slug>                           401 403 403 403 403 403 403 409   catalog:write
GET    api/v1/flavors/<slug:slug>/versions                  401 403 403 403 403 403 200 200   catalog:read
POST   api/v1/flavors/<slug:slug>/versions/<int:number>/restore 401 403 403 403 403 403 403 200 catalog:write

# --- REST: teams and tokens ---
GET    api/v1/version                                       401 200 200 200 200 200 200 200   any
GET    api/v1/me                                            401 200 200 200 200 200 200 200   any
DELETE api/v1/me                                            401 403 403 403 403 403 403 403 409 any
GET    api/v1/teams                                         401 200 200 200 200 200 200 200   teams:read
POST   api/v1/teams                                         401 403 403 403 403 403 403 201   teams:write
GET    api/v1/teams/<slug:slug>                             401 404 200 200 200 200 200 200   teams:read
PATCH  api/v1/teams/<slug:slug>                             401 404 403 403 403 200 403 200   teams:write
DELETE api/v1/teams/<slug:slug>                             401 404 403 403 403 403 403 409   teams:write
GET    api/v1/teams/<slug:slug>/contents                    401 404 403 403 403 200 200 200   teams:read
POST   api/v1/teams/<slug:slug>/archive                     401 404 403 403 403 200 403 200   teams:write
POST   api/v1/teams/<slug:slug>/restore                     401 404 403 403 403 200 403 200   teams:write
GET    api/v1/teams/<slug:slug>/egress                      401 404 200 200 200 200 200 200   teams:read
PUT    api/v1/teams/<slug:slug>/egress                      401 404 403 403 403 200 403 200   teams:write
GET    api/v1/teams/<slug:slug>/egress/versions             401 404 403 403 403 200 200 200   teams:read
POST   api/v1/teams/<slug:slug>/egress/versions/<int:number>/restore 401 404 403 403 403 200 403 200 teams:write
POST   api/v1/teams/<slug:slug>/invitations                 401 404 403 403 403 200 403 200   teams:write
GET    api/v1/teams/<slug:slug>/members                     401 404 200 200 200 200 200 200   teams:read
GET    api/v1/teams/<slug:slug>/members/<username:username> 401 404 200 200 200 200 200 200   teams:read
PUT    api/v1/teams/<slug:slug>/members/<username:username> 401 404 403 403 403 200 403 200   teams:write
POST   api/v1/teams/<slug:slug>/members/<username:username>/revoke 401 404 403 204 403 204 403 204   teams:write
GET    api/v1/tokens                                        401 200 200 200 200 200 200 200   tokens:read
POST   api/v1/tokens                                        401 201 201 201 201 201 400 201   tokens:write
GET    api/v1/tokens/<uuid:token_id>                        401 404 404 404 200 404 200 200   tokens:read
POST   api/v1/tokens/<uuid:token_id>/rotate                 401 404 404 404 201 404 403 403   tokens:write
POST   api/v1/tokens/<uuid:token_id>/revoke                 401 404 404 404 204 404 403 204   tokens:write

# --- REST: webhooks (of vision) ---
GET    api/v1/webhook-event-types                           401 200 200 200 200 200 200 200   any
GET    api/v1/webhooks                                      401 403 403 403 403 403 200 200   webhooks:read
POST   api/v1/webhooks                                      401 403 403 403 403 403 403 201   webhooks:write
GET    api/v1/teams/<slug:slug>/webhooks                    401 404 403 403 403 200 200 200   webhooks:read
POST   api/v1/teams/<slug:slug>/webhooks                    401 404 403 403 403 201 403 201   webhooks:write
GET    api/v1/webhooks/<uuid:webhook_id>                    401 404 403 403 403 200 200 200   webhooks:read
PATCH  api/v1/webhooks/<uuid:webhook_id>                    401 404 403 403 403 200 403 200   webhooks:write
DELETE api/v1/webhooks/<uuid:webhook_id>                    401 404 403 403 403 204 403 204   webhooks:write
POST   api/v1/webhooks/<uuid:webhook_id>/test               401 404 403 403 403 202 403 202   webhooks:write
POST   api/v1/webhooks/<uuid:webhook_id>/rotate-secret      401 404 403 403 403 200 403 200   webhooks:write
GET    api/v1/webhooks/<uuid:webhook_id>/deliveries         401 404 403 403 403 200 200 200   webhooks:read
GET    api/v1/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id> 401 404 403 403 403 200 200 200   webhooks:read
POST   api/v1/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver 401 404 403 403 403 202 403 202   webhooks:write

# --- pages: secrets (bob's, which only he can see) ---
GET    account/dotfiles/                                    302 200 200 200 200 200 200 200   -
POST   account/dotfiles/                                    302 302 302 302 302 302 302 302   -
GET    account/secrets/                                     302 200 200 200 200 200 200 200   -
POST   account/secrets/                                     302 302 302 302 302 302 302 302   -
GET    teams/<slug:slug>/secrets/                           302 404 200 200 200 200 200 200   -
POST   teams/<slug:slug>/secrets/                           302 404 403 403 403 302 403 302   -
GET    catalog/templates/<slug:slug>/secrets/               302 200 200 200 200 200 200 200   -
POST   catalog/templates/<slug:slug>/secrets/               302 403 403 403 403 403 403 302   -
GET    secrets/<uuid:secret_id>/                            302 404 404 404 200 404 404 404   -
POST   secrets/<uuid:secret_id>/                            302 404 404 404 302 404 404 404   -
GET    secrets/<uuid:secret_id>/delete/                     302 404 404 404 200 404 404 404   -
POST   secrets/<uuid:secret_id>/delete/                     302 404 404 404 302 404 404 404   -

# --- REST: secrets (each owner has one TOKEN_A) ---
GET    api/v1/me/security-events                            401 200 200 200 200 200 200 200   audit:read
GET    api/v1/me/dotfiles                                   401 200 200 200 200 200 200 200   workspaces:read
PUT    api/v1/me/dotfiles                                   401 200 200 200 200 200 200 200   workspaces:connect
GET    api/v1/me/secrets                                    401 200 200 200 200 200 200 200   secrets:read
GET    api/v1/me/secrets/<str:name>                         401 404 404 404 200 404 404 404   secrets:read
PUT    api/v1/me/secrets/<str:name>                         401 201 201 201 200 201 201 201   secrets:write
PATCH  api/v1/me/secrets/<str:name>                         401 404 404 404 200 404 404 404   secrets:write
DELETE api/v1/me/secrets/<str:name>                         401 404 404 404 204 404 404 404   secrets:write
GET    api/v1/teams/<slug:slug>/secrets                     401 404 200 200 200 200 200 200   secrets:read
GET    api/v1/teams/<slug:slug>/secrets/<str:name>          401 404 200 200 200 200 200 200   secrets:read
PUT    api/v1/teams/<slug:slug>/secrets/<str:name>          401 404 403 403 403 200 403 200   secrets:write
PATCH  api/v1/teams/<slug:slug>/secrets/<str:name>          401 404 403 403 403 200 403 200   secrets:write
DELETE api/v1/teams/<slug:slug>/secrets/<str:name>          401 404 403 403 403 204 403 204   secrets:write
GET    api/v1/templates/<slug:slug>/secrets                 401 200 200 200 200 200 200 200   secrets:read
GET    api/v1/templates/<slug:slug>/secrets/<str:name>      401 200 200 200 200 200 200 200   secrets:read
PUT    api/v1/templates/<slug:slug>/secrets/<str:name>      401 403 403 403 403 403 403 200   secrets:write
PATCH  api/v1/templates/<slug:slug>/secrets/<str:name>      401 403 403 403 403 403 403 200   secrets:write
DELETE api/v1/templates/<slug:slug>/secrets/<str:name>      401 403 403 403 403 403 403 204   secrets:write

# --- REST: notice channels (bob's, which only he can see) ---
GET    api/v1/notice-channels                               401 200 200 200 200 200 200 200   webhooks:read
POST   api/v1/notice-channels                               401 201 201 201 201 201 201 201   webhooks:write
GET    api/v1/notice-channels/<uuid:channel_id>             401 404 404 404 200 404 404 404   webhooks:read
PATCH  api/v1/notice-channels/<uuid:channel_id>             401 404 404 404 200 404 404 404   webhooks:write
DELETE api/v1/notice-channels/<uuid:channel_id>             401 404 404 404 204 404 404 404   webhooks:write
POST   api/v1/notice-channels/<uuid:channel_id>/test        401 404 404 404 202 404 404 404   webhooks:write
GET    api/v1/notice-channels/<uuid:channel_id>/messages    401 404 404 404 200 404 404 404   webhooks:read

# --- REST: service accounts (of vision) ---
GET    api/v1/teams/<slug:slug>/service-accounts            401 404 200 200 200 200 200 200   teams:read
POST   api/v1/teams/<slug:slug>/service-accounts            401 404 403 403 403 201 403 201   teams:write
GET    api/v1/teams/<slug:slug>/service-accounts/<username:username> 401 404 200 200 200 200 200 200   teams:read
PATCH  api/v1/teams/<slug:slug>/service-accounts/<username:username> 401 404 403 403 403 200 403 200   teams:write
DELETE api/v1/teams/<slug:slug>/service-accounts/<username:username> 401 404 403 403 403 204 403 204   teams:write
POST   api/v1/teams/<slug:slug>/service-accounts/<username:username>/deactivate 401 404 403 403 403 200 403 200   teams:write
POST   api/v1/teams/<slug:slug>/service-accounts/<username:username>/reactivate 401 404 403 403 403 200 403 200   teams:write
GET    api/v1/teams/<slug:slug>/service-accounts/<username:username>/tokens 401 404 403 403 403 200 200 200   tokens:read
POST   api/v1/teams/<slug:slug>/service-accounts/<username:username>/tokens 401 404 403 403 403 201 403 201   tokens:write
GET    api/v1/teams/<slug:slug>/service-accounts/<username:username>/trust-rules 401 404 403 403 403 200 200 200   tokens:read
POST   api/v1/teams/<slug:slug>/service-accounts/<username:username>/trust-rules 401 404 403 403 403 201 403 201   tokens:write
POST   api/v1/teams/<slug:slug>/service-accounts/<username:username>/trust-rules/check 401 404 403 403 403 200 200 200   tokens:read
GET    api/v1/teams/<slug:slug>/service-accounts/<username:username>/trust-rules/<uuid:trust_id> 401 404 403 403 403 200 200 200   tokens:read
DELETE api/v1/teams/<slug:slug>/service-accounts/<username:username>/trust-rules/<uuid:trust_id> 401 404 403 403 403 204 403 204   tokens:write
POST   api/v1/token-exchange                                400 400 400 400 400 400 400 400   any
POST   api/v1/token-exchange/renew                          401 409 409 409 409 409 409 409   any

# --- accounts (the user is dan) ---
GET    sign-in/forgotten/                                   404 404 404 404 404 404 404 404   -
POST   sign-in/forgotten/                                   404 404 404 404 404 404 404 404   -
GET    welcome/<uuid:user_id>/<str:link>/                   200 200 200 200 200 200 200 200   -
POST   welcome/<uuid:user_id>/<str:link>/                   302 302 302 302 302 302 302 302   -
GET    users/                                               302 403 403 403 403 403 200 403 200 -
POST   users/                                               302 403 403 403 403 403 403 403 200 -
GET    users/<str:username>/                                302 403 403 403 403 403 200 403 200 -
POST   users/<str:username>/                                302 403 403 403 403 403 403 403 302 -
GET    users/<str:username>/team/                           302 403 403 403 403 403 302 403 302 -
POST   users/<str:username>/team/                           302 403 403 403 403 403 403 403 302 -
GET    users/<str:username>/invite/                         302 403 403 403 403 403 302 403 302 -
POST   users/<str:username>/invite/                         302 403 403 403 403 403 403 403 302 -
GET    users/<str:username>/deactivate/                     302 403 403 403 403 403 403 403 200 -
POST   users/<str:username>/deactivate/                     302 403 403 403 403 403 403 403 302 -
GET    users/<str:username>/reactivate/                     302 403 403 403 403 403 302 403 302 -
POST   users/<str:username>/reactivate/                     302 403 403 403 403 403 403 403 302 -
GET    users/<str:username>/reset-password/                 302 403 403 403 403 403 403 403 200 -
POST   users/<str:username>/reset-password/                 302 403 403 403 403 403 403 403 200 -
GET    users/<str:username>/reset-mfa/                      302 403 403 403 403 403 403 403 200 -
POST   users/<str:username>/reset-mfa/                      302 403 403 403 403 403 403 403 302 -
GET    users/<str:username>/sessions/revoke/                   302 403 403 403 403 403 403 403 200 -
POST   users/<str:username>/sessions/revoke/                   302 403 403 403 403 403 403 403 302 -
GET    users/<str:username>/delete/                         302 403 403 403 403 403 403 403 200 -
POST   users/<str:username>/delete/                         302 403 403 403 403 403 403 403 302 -
GET    api/v1/users                                         401 403 403 403 403 403 200 403 200 users:read
POST   api/v1/users                                         401 403 403 403 403 403 403 403 201 users:write
GET    api/v1/users/<username:username>                     401 403 403 403 403 403 200 403 200 users:read
PATCH  api/v1/users/<username:username>                     401 403 403 403 403 403 403 403 200 users:write
DELETE api/v1/users/<username:username>                     401 403 403 403 403 403 403 403 204 users:write
POST   api/v1/users/<username:username>/deactivate          401 403 403 403 403 403 403 403 200 users:write
POST   api/v1/users/<username:username>/reactivate          401 403 403 403 403 403 403 403 200 users:write
POST   api/v1/users/<username:username>/invite              401 403 403 403 403 403 403 403 409 -
POST   api/v1/users/<username:username>/reset-password      401 403 403 403 403 403 403 403 200 users:write
POST   api/v1/users/<username:username>/reset-mfa           401 403 403 403 403 403 403 403 200 users:write
POST   api/v1/users/<username:username>/sessions/revoke     401 403 403 403 403 403 403 403 200 users:write
GET    api/v1/users/<username:username>/sign-ins            401 403 403 403 403 403 200 403 200 users:read
GET    api/v1/events                                        401 200 200 200 200 200 200 200   events:read
GET    api/v1/events/stream                                 401 200 200 200 200 200 200 200   events:read
GET    api/v1/audit-entries                                 401 403 403 403 403 403 200 403 200 audit:read

# --- sign-in by a provider (which does not answer here) ---
GET    sign-in/by/<slug:idp>/                               503 503 503 503 503 503 503 503 503 -
GET    sign-in/oidc/<slug:idp>/callback/                    400 400 400 400 400 400 400 400 400 -
POST   sign-in/oidc/<slug:idp>/signed-out/                  503 503 503 503 503 503 503 503 503 -
GET    sign-in/oidc/<slug:idp>/left/                        302 302 302 302 302 302 302 302 302 -
POST   sign-in/saml/<slug:idp>/acs/                         404 404 404 404 404 404 404 404 404 -
GET    sign-in/saml/<slug:idp>/finish/                      404 404 404 404 404 404 404 404 404 -
GET    sign-in/saml/<slug:idp>/metadata/                    404 404 404 404 404 404 404 404 404 -
GET    sign-in-providers/<slug:idp>/test/                   302 403 403 403 403 403 403 403 503 -
POST   sign-in-providers/<slug:idp>/test/                   302 403 403 403 403 403 403 403 302 -
GET    sign-in-providers/<slug:idp>/tested/                 302 403 403 403 403 403 403 403 302 -

# --- sign-in providers (corp, to which dan is linked) ---
GET    sign-in-providers/                                   302 403 403 403 403 403 200 403 200 -
GET    sign-in-providers/<slug:idp>/                        302 403 403 403 403 403 200 403 200 -
POST   sign-in-providers/<slug:idp>/                        302 403 403 403 403 403 403 403 200 -
GET    sign-in-providers/<slug:idp>/link/                   302 403 403 403 403 403 302 403 302 -
POST   sign-in-providers/<slug:idp>/link/                   302 403 403 403 403 403 403 403 302 -
GET    sign-in-providers/<slug:idp>/unlink/<str:username>/  302 403 403 403 403 403 403 403 200 -
POST   sign-in-providers/<slug:idp>/unlink/<str:username>/  302 403 403 403 403 403 403 403 302 -
GET    api/v1/sign-in-providers                             401 403 403 403 403 403 200 403 200 users:read
GET    api/v1/sign-in-providers/<slug:idp>                  401 403 403 403 403 403 200 403 200 users:read
POST   api/v1/sign-in-providers/<slug:idp>/preview          401 403 403 403 403 403 403 403 200 users:read
POST   api/v1/sign-in-providers/<slug:idp>/test             401 403 403 403 403 403 403 403 409 users:read
GET    api/v1/sign-in-providers/<slug:idp>/links            401 403 403 403 403 403 200 403 200 users:read
POST   api/v1/sign-in-providers/<slug:idp>/links            401 403 403 403 403 403 403 403 201 users:write
DELETE api/v1/sign-in-providers/<slug:idp>/links/<username:username> 401 403 403 403 403 403 403 403 204 users:write

# --- search (every user finds what they can open) ---
GET    search/                                              302 200 200 200 200 200 200 200   -

# --- inbox (every user has their own) ---
GET    inbox/                                               302 200 200 200 200 200 200 200   -
GET    inbox/badge/                                         302 200 200 200 200 200 200 200   -
GET    api/v1/inbox                                         401 200 200 200 200 200 200 200   inbox:read

# --- notices (the notice is bob's) ---
GET    notifications/                                       302 200 200 200 200 200 200 200   -
GET    notifications/bell/                                  302 200 200 200 200 200 200 200   -
GET    notifications/read/                                  302 302 302 302 302 302 302 302   -
POST   notifications/read/                                  302 302 302 302 302 302 302 302   -
GET    notifications/<int:notification_id>/read/            302 302 302 302 302 302 302 302   -
POST   notifications/<int:notification_id>/read/            302 404 404 404 302 404 404 404   -
GET    api/v1/notifications                                 401 200 200 200 200 200 200 200   notices:read
POST   api/v1/notifications/read                            401 200 200 200 200 200 200 200   notices:write
POST   api/v1/notifications/<int:notification_id>/read      401 404 404 404 200 404 404 404   notices:write

# --- quota requests (bob's, for a higher cap, which owners and operators decide) ---
GET    quotas/ask/                                          302 200 200 200 200 200 200 200   -
POST   quotas/ask/                                          302 400 400 400 400 400 400 400   -
GET    quotas/teams/<slug:slug>/ledger/                     302 404 302 302 302 302 302 302   -
POST   quotas/teams/<slug:slug>/ledger/                     302 404 302 302 302 302 302 302   -
GET    quotas/teams/<slug:slug>/budget/                     302 404 302 302 302 302 302 302   -
POST   quotas/teams/<slug:slug>/budget/                     302 404 302 302 302 302 302 302   -
GET    calendar/                                            302 200 200 200 200 200 200 200   -
POST   calendar/                                            302 404 403 403 403 302 403 302   -
GET    calendar/<uuid:reservation_id>/                      302 404 200 200 200 200 200 200   -
POST   calendar/<uuid:reservation_id>/                      302 404 302 302 302 302 302 302   -
GET    calendar/permissions/                                302 403 403 403 403 403 200 200   -
POST   calendar/permissions/                                302 403 403 403 403 403 403 403 400 -
GET    calendar/permissions/<uuid:permission_id>/revoke/       302 302 302 302 302 302 302 302   -
POST   calendar/permissions/<uuid:permission_id>/revoke/       302 404 404 404 302 404 403 403 302 -
GET    queue/                                               302 200 200 200 200 200 200 200   -
GET    quotas/approvals/                                    302 200 200 200 200 200 200 200   -
GET    quotas/requests/<uuid:request_id>/                   302 404 200 200 200 200 200 200   -
GET    quotas/requests/<uuid:request_id>/decide/            302 404 302 302 302 302 302 302   -
POST   quotas/requests/<uuid:request_id>/decide/            302 404 302 302 302 302 302 302   -
GET    quotas/requests/<uuid:request_id>/cancel/            302 404 302 302 302 302 302 302   -
POST   quotas/requests/<uuid:request_id>/cancel/            302 404 302 302 302 302 302 302   -
GET    quotas/grants/<uuid:grant_id>/revoke/                302 302 302 302 302 302 302 302   -
POST   quotas/grants/<uuid:grant_id>/revoke/                302 404 302 302 302 302 302 302   -
GET    quotas/rules/                                        302 403 403 403 403 403 200 200   -
POST   quotas/rules/                                        302 403 403 403 403 403 403 403 200 -
GET    quotas/rules/<uuid:rule_id>/                         302 302 302 302 302 302 302 302   -
POST   quotas/rules/<uuid:rule_id>/                         302 403 403 403 403 403 403 403 302 -
GET    quotas/delegations/                                  302 302 302 302 302 302 302 302   -
POST   quotas/delegations/                                  302 403 403 403 403 403 403 403 400 -
GET    quotas/delegations/<uuid:delegation_id>/revoke/         302 302 302 302 302 302 302 302   -
POST   quotas/delegations/<uuid:delegation_id>/revoke/         302 403 403 403 403 403 403 403 302 -
GET    api/v1/quota-requests                                401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/quota-requests                                401 400 403 201 201 201 403 403   quotas:write
GET    api/v1/quota-requests/<uuid:request_id>              401 404 200 200 200 200 200 200   quotas:read
POST   api/v1/quota-requests/<uuid:request_id>/approve      401 404 403 403 403 200 403 200   quotas:decide
POST   api/v1/quota-requests/<uuid:request_id>/deny         401 404 403 403 403 200 403 200   quotas:decide
POST   api/v1/quota-requests/<uuid:request_id>/cancel       401 404 403 403 200 403 403 403   quotas:write
GET    api/v1/grants                                        401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/grants/<uuid:grant_id>/revoke                 401 404 403 403 403 200 403 200   quotas:decide
GET    api/v1/auto-approve-rules                            401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/auto-approve-rules                            401 403 403 403 403 403 403 403 400 -
GET    api/v1/auto-approve-rules/<uuid:rule_id>             401 200 200 200 200 200 200 200   quotas:read
PATCH  api/v1/auto-approve-rules/<uuid:rule_id>             401 403 403 403 403 403 403 403 200 quotas:decide
DELETE api/v1/auto-approve-rules/<uuid:rule_id>             401 403 403 403 403 403 403 403 204 quotas:decide
GET    api/v1/delegations                                   401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/delegations                                   401 403 403 403 403 403 403 403 400 -
GET    api/v1/delegations/<uuid:delegation_id>              401 404 404 404 404 404 200 200   quotas:read
POST   api/v1/delegations/<uuid:delegation_id>/revoke       401 404 404 404 404 404 403 403 204 quotas:decide

# --- pages: quotas and limits ---
GET    quotas/                                              302 200 200 200 200 200 200 200   -
POST   quotas/                                              302 403 403 403 403 403 403 302   -
GET    quotas/limits/                                       302 403 403 403 403 403 200 200   -
POST   quotas/limits/                                       302 403 403 403 403 403 403 302   -
GET    quotas/teams/<slug:slug>/caps/                       302 302 302 302 302 302 302 302   -
POST   quotas/teams/<slug:slug>/caps/                       302 404 403 403 403 302 403 302   -

# --- quotas and limits (a cap of vision, and the cohort of vision) ---
GET    api/v1/me/gpu-hours                                  401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/ledgers                                       401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/ledgers/<slug:slug>                           401 404 200 200 200 200 200 200   quotas:read
PUT    api/v1/ledgers/<slug:slug>                           401 403 403 403 403 403 403 200   quotas:write
DELETE api/v1/ledgers/<slug:slug>                           401 403 403 403 403 403 403 204   quotas:write
POST   api/v1/ledgers/<slug:slug>/credits                   401 404 403 403 403 403 403 200   quotas:decide
GET    api/v1/ledger-entries                                401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/budgets                                      401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/budgets/<slug:slug>                          401 404 200 200 200 200 200 200   quotas:read
PUT    api/v1/budgets/<slug:slug>                          401 403 403 403 403 403 403 200   quotas:write
DELETE api/v1/budgets/<slug:slug>                          401 403 403 403 403 403 403 204   quotas:write
GET    api/v1/reservations                                  401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/reservations                                  401 400 403 403 403 201 403 201   quotas:write
GET    api/v1/reservations/<uuid:reservation_id>            401 404 200 200 200 200 200 200   quotas:read
PUT    api/v1/reservations/<uuid:reservation_id>            401 404 403 403 403 200 403 200   quotas:write
POST   api/v1/reservations/<uuid:reservation_id>/approve    401 404 403 403 403 403 403 200   quotas:decide
POST   api/v1/reservations/<uuid:reservation_id>/cancel     401 404 403 403 403 200 403 200   quotas:write
POST   api/v1/reservations/<uuid:reservation_id>/deny       401 404 403 403 403 403 403 200   quotas:decide
GET    api/v1/booking-permissions                           401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/booking-permissions                           401 403 403 403 403 403 403 403 201 quotas:decide
POST   api/v1/booking-permissions/<uuid:permission_id>/revoke 401 404 404 404 204 404 403 403 204 quotas:decide
GET    api/v1/queue                                         401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/queue/handed-over                             401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/quotas                                        401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/quotas/change                                 401 403 403 403 403 403 403 200   quotas:write
POST   api/v1/quotas/preview                                401 403 403 403 403 403 403 200   quotas:write
POST   api/v1/quotas                                        401 403 403 403 403 403 403 201   quotas:write
GET    api/v1/quotas/<uuid:quota_id>                        401 404 200 200 200 200 200 200   quotas:read
PUT    api/v1/quotas/<uuid:quota_id>                        401 404 403 403 403 403 403 200   quotas:write
DELETE api/v1/quotas/<uuid:quota_id>                        401 404 403 403 403 403 403 204   quotas:write
GET    api/v1/teams/<slug:slug>/usage                       401 404 200 200 200 200 200 200   quotas:read
GET    api/v1/teams/<slug:slug>/share                       401 404 200 200 200 200 200 200   quotas:read
PUT    api/v1/teams/<slug:slug>/share                       401 404 403 403 403 403 403 200   quotas:write
GET    api/v1/member-caps                                   401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/member-caps                                   401 400 403 403 403 201 403 201   quotas:write
GET    api/v1/member-caps/<uuid:cap_id>                     401 404 200 200 200 200 200 200   quotas:read
PUT    api/v1/member-caps/<uuid:cap_id>                     401 404 403 403 403 200 403 200   quotas:write
DELETE api/v1/member-caps/<uuid:cap_id>                     401 404 403 403 403 204 403 204   quotas:write
GET    api/v1/cohorts                                       401 200 200 200 200 200 200 200   quotas:read
POST   api/v1/cohorts                                       401 403 403 403 403 403 403 201   quotas:write
GET    api/v1/cohorts/<slug:slug>                           401 404 200 200 200 200 200 200   quotas:read
PUT    api/v1/cohorts/<slug:slug>                           401 403 403 403 403 403 403 200   quotas:write
DELETE api/v1/cohorts/<slug:slug>                           401 403 403 403 403 403 403 409   -
GET    api/v1/site-limits                                   401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/site-limits/<resource:resource>               401 200 200 200 200 200 200 200   quotas:read
PUT    api/v1/site-limits/<resource:resource>               401 403 403 403 403 403 403 200   quotas:write
DELETE api/v1/site-limits/<resource:resource>               401 403 403 403 403 403 403 204   quotas:write
GET    api/v1/rates                                         401 200 200 200 200 200 200 200   quotas:read
GET    api/v1/rates/<resource:resource>                     401 200 200 200 200 200 200 200   quotas:read
PUT    api/v1/rates/<resource:resource>                     401 403 403 403 403 403 403 200   quotas:write
DELETE api/v1/rates/<resource:resource>                     401 403 403 403 403 403 403 204   quotas:write

# --- REST: pools ---
GET    api/v1/pools                                         401 200 200 200 200 200 200 200   pools:read
GET    api/v1/pools/<slug:slug>                             401 200 200 200 200 200 200 200   pools:read
GET    api/v1/pools/<slug:slug>/checks                      401 200 200 200 200 200 200 200   pools:read
GET    api/v1/pools/<slug:slug>/missing                     401 403 403 403 403 403 200 200   pools:read
GET    api/v1/pools/<slug:slug>/versions                    401 403 403 403 403 403 403 200   pools:read
GET    api/v1/orphans                                       401 403 403 403 403 403 200 200   pools:read
GET    api/v1/orphans/<uuid:orphan_id>                      401 403 403 403 403 403 200 200   pools:read
POST   api/v1/orphans/<uuid:orphan_id>/delete               401 403 403 403 403 403 403 202   pools:write
GET    api/v1/rebalance-proposals                           401 403 403 403 403 403 200 200   pools:read
GET    api/v1/rebalance-proposals/<uuid:proposal_id>        401 403 403 403 403 403 200 200   pools:read
POST   api/v1/rebalance-proposals/<uuid:proposal_id>/apply  401 403 403 403 403 403 403 409   pools:write
POST   api/v1/rebalance-proposals/<uuid:proposal_id>/dismiss 401 403 403 403 403 403 403 200   pools:write
POST   api/v1/pools/<slug:slug>/versions/<int:number>/restore 401 403 403 403 403 403 403 200   pools:write
PUT    api/v1/pools/<slug:slug>/checks                      401 403 403 403 403 403 403 200   pools:write
GET    api/v1/pools/<slug:slug>/join-tokens                 401 403 403 403 403 403 200 200   pools:read
POST   api/v1/pools/<slug:slug>/join-tokens                 401 403 403 403 403 403 403 409   pools:write
POST   api/v1/pools/<slug:slug>/join-tokens/<uuid:join_token_id>/revoke 401 403 403 403 403 403 403 204   pools:write
GET    api/v1/machines                                      401 403 403 403 403 403 200 200   pools:read
GET    api/v1/machines/<uuid:machine_id>                    401 403 403 403 403 403 200 200   pools:read
POST   api/v1/machines/<uuid:machine_id>/revoke             401 403 403 403 403 403 403 200   pools:write
DELETE api/v1/machines/<uuid:machine_id>                    401 403 403 403 403 403 403 409   pools:write
GET    api/v1/machines/<uuid:machine_id>/losses             401 403 403 403 403 403 200 200   pools:read
POST   api/v1/machines/<uuid:machine_id>/delete             401 403 403 403 403 403 403 409   pools:write
GET    api/v1/lost-homes                                    401 200 200 200 200 200 200 200   workspaces:read
POST   api/v1/lost-homes/<uuid:lost_home_id>/recreate       401 404 404 404 200 404 403 200   workspaces:write
GET    api/v1/homes                                         401 200 200 200 200 200 200 200   workspaces:read
GET    api/v1/homes/<int:home_id>                           401 404 404 404 200 404 200 200   workspaces:read
POST   api/v1/homes/<int:home_id>/keep                      401 404 404 404 200 404 403 200   workspaces:write
POST   api/v1/homes/<int:home_id>/restore                   401 404 404 404 409 404 403 409   workspaces:write
POST   api/v1/homes/<int:home_id>/delete                    401 403 403 403 403 403 403 403 409 workspaces:write
GET    api/v1/home-moves                                    401 200 200 200 200 200 200 200   workspaces:read
POST   api/v1/home-moves                                    401 400 400 400 400 400 400 400   workspaces:write
GET    api/v1/home-moves/<uuid:home_move_id>                401 404 404 404 200 404 200 200   workspaces:read
POST   api/v1/home-moves/<uuid:home_move_id>/cancel         401 404 404 404 200 404 403 200   workspaces:write
GET    api/v1/home-evacuations                              401 403 403 403 403 403 200 200   pools:read
GET    api/v1/home-evacuations/<uuid:home_evacuation_id>    401 403 403 403 403 403 200 200   pools:read
POST   api/v1/home-evacuations/<uuid:home_evacuation_id>/cancel 401 403 403 403 403 403 403 200   pools:write
GET    api/v1/nodes/<uuid:node_id>/homes                    401 403 403 403 403 403 200 200   pools:read
POST   api/v1/nodes/<uuid:node_id>/homes                    401 403 403 403 403 403 403 400   pools:write
GET    api/v1/nodes                                         401 200 200 200 200 200 200 200   pools:read
GET    api/v1/nodes/<uuid:node_id>                          401 200 200 200 200 200 200 200   pools:read
PATCH  api/v1/nodes/<uuid:node_id>                          401 403 403 403 403 403 403 200   pools:write
POST   api/v1/nodes/<uuid:node_id>/cordon                   401 403 403 403 403 403 403 200   pools:write
POST   api/v1/nodes/<uuid:node_id>/uncordon                 401 403 403 403 403 403 403 200   pools:write
POST   api/v1/nodes/<uuid:node_id>/drain                    401 403 403 403 403 403 403 200   pools:write
POST   api/v1/nodes/<uuid:node_id>/check-joint              401 403 403 403 403 403 403 409   pools:write
POST   api/v1/nodes/<uuid:node_id>/check-link               401 403 403 403 403 403 403 409   pools:write
GET    api/v1/devices                                       401 200 200 200 200 200 200 200   pools:read
GET    api/v1/devices/<uuid:device_id>                      401 200 200 200 200 200 200 200   pools:read
POST   api/v1/devices/<uuid:device_id>/cordon               401 403 403 403 403 403 403 200   pools:write
POST   api/v1/devices/<uuid:device_id>/uncordon             401 403 403 403 403 403 403 200   pools:write
POST   api/v1/devices/<uuid:device_id>/drain                401 403 403 403 403 403 403 200   pools:write
POST   api/v1/devices/<uuid:device_id>/reset                401 403 403 403 403 403 403 202   pools:write
GET    api/v1/devices/<uuid:device_id>/samples              401 200 200 200 200 200 200 200   pools:read
GET    api/v1/gpu-checks                                    401 200 200 200 200 200 200 200   pools:read
POST   api/v1/gpu-checks                                    401 403 403 403 403 403 403 202   pools:write
GET    api/v1/gpu-checks/<uuid:check_id>                    401 200 200 200 200 200 200 200   pools:read
POST   api/v1/gpu-checks/<uuid:check_id>/cancel             401 403 403 403 403 403 403 200   pools:write
GET    api/v1/gpu-checks/<uuid:check_id>/stream             401 200 200 200 200 200 200 200   pools:read
GET    api/v1/schemas/gpu-check                             401 200 200 200 200 200 200 200   pools:read

# --- REST: OpenAPI document ---
GET    api/v1/schema                                        200 200 200 200 200 200 200 200   any
GET    api/v1/docs                                          200 200 200 200 200 200 200 200   any
GET    api/                                                 404 404 404 404 404 404 404 404   -

# --- SCIM (identity providers use separate tokens, which no user here has) ---
GET    scim/v2/ServiceProviderConfig                        401 401 401 401 401 401 401 401   -
GET    scim/v2/ResourceTypes                                401 401 401 401 401 401 401 401   -
GET    scim/v2/ResourceTypes/<str:name>                     401 401 401 401 401 401 401 401   -
GET    scim/v2/Schemas                                      401 401 401 401 401 401 401 401   -
GET    scim/v2/Schemas/<str:name>                           401 401 401 401 401 401 401 401   -
GET    scim/v2/Users                                        401 401 401 401 401 401 401 401   -
POST   scim/v2/Users                                        401 401 401 401 401 401 401 401   -
PUT    scim/v2/Users                                        401 401 401 401 401 401 401 401   -
PATCH  scim/v2/Users                                        401 401 401 401 401 401 401 401   -
DELETE scim/v2/Users                                        401 401 401 401 401 401 401 401   -
GET    scim/v2/Users/<uuid:scim_id>                         401 401 401 401 401 401 401 401   -
POST   scim/v2/Users/<uuid:scim_id>                         401 401 401 401 401 401 401 401   -
PUT    scim/v2/Users/<uuid:scim_id>                         401 401 401 401 401 401 401 401   -
PATCH  scim/v2/Users/<uuid:scim_id>                         401 401 401 401 401 401 401 401   -
DELETE scim/v2/Users/<uuid:scim_id>                         401 401 401 401 401 401 401 401   -
GET    scim/v2/Groups                                       401 401 401 401 401 401 401 401   -
POST   scim/v2/Groups                                       401 401 401 401 401 401 401 401   -
PUT    scim/v2/Groups                                       401 401 401 401 401 401 401 401   -
PATCH  scim/v2/Groups                                       401 401 401 401 401 401 401 401   -
DELETE scim/v2/Groups                                       401 401 401 401 401 401 401 401   -
GET    scim/v2/Groups/<uuid:scim_id>                        401 401 401 401 401 401 401 401   -
POST   scim/v2/Groups/<uuid:scim_id>                        401 401 401 401 401 401 401 401   -
PUT    scim/v2/Groups/<uuid:scim_id>                        401 401 401 401 401 401 401 401   -
PATCH  scim/v2/Groups/<uuid:scim_id>                        401 401 401 401 401 401 401 401   -
DELETE scim/v2/Groups/<uuid:scim_id>                        401 401 401 401 401 401 401 401   -
GET    scim/v2/Me                                           401 401 401 401 401 401 401 401   -
POST   scim/v2/Me                                           401 401 401 401 401 401 401 401   -
GET    scim/v2/Bulk                                         401 401 401 401 401 401 401 401   -
POST   scim/v2/Bulk                                         401 401 401 401 401 401 401 401   -
GET    scim/v2/.search                                      401 401 401 401 401 401 401 401   -
POST   scim/v2/.search                                      401 401 401 401 401 401 401 401   -
GET    scim/v2/Users/.search                                401 401 401 401 401 401 401 401   -
POST   scim/v2/Users/.search                                401 401 401 401 401 401 401 401   -
PUT    scim/v2/Users/.search                                401 401 401 401 401 401 401 401   -
PATCH  scim/v2/Users/.search                                401 401 401 401 401 401 401 401   -
DELETE scim/v2/Users/.search                                401 401 401 401 401 401 401 401   -
GET    scim/v2/Groups/.search                               401 401 401 401 401 401 401 401   -
POST   scim/v2/Groups/.search                               401 401 401 401 401 401 401 401   -
PUT    scim/v2/Groups/.search                               401 401 401 401 401 401 401 401   -
PATCH  scim/v2/Groups/.search                               401 401 401 401 401 401 401 401   -
DELETE scim/v2/Groups/.search                               401 401 401 401 401 401 401 401   -
GET    scim/                                                404 404 404 404 404 404 404 404   -

# --- agents ---
POST   agent/v1/launched                                    401 401 401 401 401 401 401 401   -
POST   agent/v1/ready                                       401 401 401 401 401 401 401 401   -
POST   agent/v1/heartbeat                                   401 401 401 401 401 401 401 401   -
POST   agent/v1/exited                                      401 401 401 401 401 401 401 401   -
POST   agent/v1/secrets                                     401 401 401 401 401 401 401 401   -
POST   agent/v1/checkout                                    401 401 401 401 401 401 401 401   -

# --- joining machines (reachable only through the nodes' door) ---
GET    nodes/v1/authority                                   404 404 404 404 404 404 404 404   -
POST   nodes/v1/join                                        404 404 404 404 404 404 404 404   -
POST   nodes/v1/rotate                                      404 404 404 404 404 404 404 404   -
POST   nodes/v1/leave                                       404 404 404 404 404 404 404 404   -
POST   nodes/v1/standing                                    404 404 404 404 404 404 404 404   -
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Row:
    """One line: `outcomes` in the order of `ACTORS`, each a set of statuses."""

    method: str
    route: str
    outcomes: tuple[frozenset[int], ...]
    scope: str

    def __str__(self) -> str:
        return f"{self.method} {self.route}"

    @property
    def writes(self) -> bool:
        return self.method != "GET" and self.scope != "any" and not self.scope.endswith(":read")

    @property
    def in_api(self) -> bool:
        return self.route.startswith("api/v1/")


def _outcome(word: str) -> frozenset[int]:
    return frozenset({200, 503}) if word == "~" else frozenset({int(word)})


def rows() -> list[Row]:
    table_rows = []
    for line in TABLE.splitlines():
        if not line or line.startswith("#"):
            continue
        method, route, *words = line.split()
        if len(words) == len(ACTORS):
            words.insert(len(ACTORS) - 1, words[len(ACTORS) - 2])
        assert len(words) == len(ACTORS) + 1, line
        outcomes = tuple(_outcome(word) for word in words[: len(ACTORS)])
        table_rows.append(Row(method, "" if route == "." else route, outcomes, words[-1]))
    return table_rows


ROWS = rows()
