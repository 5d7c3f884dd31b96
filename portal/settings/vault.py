"""Settings for a Vault that provides secrets when workspaces start (portal.workspaces.secrets.vault).

The address of Vault, how the portal signs in (an AppRole or a token file), and the paths that users, teams
and templates may use.
"""

from __future__ import annotations

from portal.settings.checks import check_vault
from portal.settings.parsing import env

BERTH_VAULT_ADDR = env.str("BERTH_VAULT_ADDR", default="").strip().rstrip("/")
BERTH_VAULT_NAMESPACE = env.str("BERTH_VAULT_NAMESPACE", default="").strip()
BERTH_VAULT_CA_FILE = env.str("BERTH_VAULT_CA_FILE", default="").strip()
BERTH_VAULT_MOUNT = env.str("BERTH_VAULT_MOUNT", default="secret").strip().strip("/")
BERTH_VAULT_ROLE_ID = env.str("BERTH_VAULT_ROLE_ID", default="").strip()
BERTH_VAULT_SECRET_ID_FILE = env.str("BERTH_VAULT_SECRET_ID_FILE", default="").strip()
BERTH_VAULT_APPROLE_MOUNT = env.str("BERTH_VAULT_APPROLE_MOUNT", default="approle").strip().strip("/")
BERTH_VAULT_TOKEN_FILE = env.str("BERTH_VAULT_TOKEN_FILE", default="").strip()
BERTH_VAULT_USER_PATHS = (env.str("BERTH_VAULT_USER_PATHS", default="") or "berth/users/{user}").split()
BERTH_VAULT_TEAM_PATHS = (env.str("BERTH_VAULT_TEAM_PATHS", default="") or "berth/teams/{team}").split()
BERTH_VAULT_TEMPLATE_PATHS = (
    env.str("BERTH_VAULT_TEMPLATE_PATHS", default="") or "berth/templates/{template}"
).split()
if BERTH_VAULT_ADDR:
    check_vault(
        BERTH_VAULT_ADDR,
        has_app_role=bool(BERTH_VAULT_ROLE_ID and BERTH_VAULT_SECRET_ID_FILE),
        has_token_file=bool(BERTH_VAULT_TOKEN_FILE),
    )
