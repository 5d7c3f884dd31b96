"""The name of every operation of REST, by hand: clients make methods of it, so none changes once released.

A name is a verb and what it is done to, as a person would say it, in camelCase (`startWorkspace`): `list` for
pages of rows, `get` for one thing, `create`, `update` (PATCH: what is left out stays), `set` (PUT: all of
it), `delete` for a thing, `cancel` for what waits or runs, `revoke` for a right, and else the verb of the
button. docs/api.md has the rules ("Verbs"). Operations stand below the tag that documents and clients
group them by; paths are without `/api/v1/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

GET, POST, PUT, PATCH, DELETE = "GET", "POST", "PUT", "PATCH", "DELETE"


class Tag(NamedTuple):
    """A group of operations: what it is about, and path → method → name."""

    description: str
    paths: Mapping[str, Mapping[str, str]]


TAGS: Mapping[str, Tag] = {
    "workspaces": Tag(
        "Workspaces: create, follow, start, stop, extend and delete them.",
        {
            "workspaces": {GET: "listWorkspaces", POST: "createWorkspace"},
            "workspaces/stop": {POST: "stopWorkspaces"},
            "workspaces/delete": {POST: "deleteWorkspaces"},
            "workspaces/{workspace_id}": {
                GET: "getWorkspace",
                PATCH: "updateWorkspace",
                DELETE: "deleteWorkspace",
            },
            "workspaces/{workspace_id}/start": {POST: "startWorkspace"},
            "workspaces/{workspace_id}/stop": {POST: "stopWorkspace"},
            "workspaces/{workspace_id}/extend": {POST: "extendWorkspace"},
            "workspaces/{workspace_id}/release-gpu": {POST: "releaseWorkspaceGpu"},
            "workspaces/{workspace_id}/attach-gpu": {POST: "attachWorkspaceGpu"},
            "workspaces/{workspace_id}/resize": {POST: "resizeWorkspace"},
            "workspaces/{workspace_id}/keep": {POST: "keepWorkspace"},
            "workspaces/{workspace_id}/efficiency": {GET: "getWorkspaceEfficiency"},
            "workspaces/{workspace_id}/activity": {GET: "getWorkspaceActivity"},
            "workspaces/{workspace_id}/logs": {GET: "getWorkspaceLog"},
            "workspaces/{workspace_id}/logs/stream": {GET: "followWorkspaceLog"},
            "workspaces/{workspace_id}/events": {GET: "listWorkspaceEvents"},
            "workspaces/{workspace_id}/events/stream": {GET: "followWorkspaceEvents"},
            "workspaces/{workspace_id}/packages": {GET: "listWorkspacePackages"},
            "workspaces/{workspace_id}/packages/reset": {POST: "resetWorkspacePackages"},
            "workspaces/{workspace_id}/packages/reset/cancel": {POST: "cancelWorkspacePackagesReset"},
            "workspaces/{workspace_id}/packages/save": {POST: "saveWorkspacePackages"},
        },
    ),
    "files": Tag(
        "Files of home folders, and archives of whole ones.",
        {
            "workspaces/{workspace_id}/files": {GET: "listFiles"},
            "workspaces/{workspace_id}/files/delete": {POST: "deleteFiles"},
            "workspaces/{workspace_id}/files/downloads": {POST: "createFileDownload"},
            "workspaces/{workspace_id}/files/folders": {POST: "createFolder"},
            "workspaces/{workspace_id}/files/rename": {POST: "renameFile"},
            "workspaces/{workspace_id}/files/uploads": {POST: "createFileUpload"},
            "workspaces/{workspace_id}/files/archives": {GET: "listArchives", POST: "createArchive"},
            "workspaces/{workspace_id}/files/archives/{archive_id}": {
                GET: "getArchive",
                DELETE: "deleteArchive",
            },
            "workspaces/{workspace_id}/files/archives/{archive_id}/cancel": {POST: "cancelArchive"},
            "workspaces/{workspace_id}/files/archives/{archive_id}/restore": {POST: "restoreArchive"},
        },
    ),
    "queue": Tag(
        "What waits, what would become of a request, and capacity booked for a time.",
        {
            "queue": {GET: "listQueue"},
            "admission/preview": {POST: "previewAdmission"},
            "reservations": {GET: "listReservations", POST: "createReservation"},
            "reservations/{reservation_id}": {GET: "getReservation", PUT: "setReservation"},
            "reservations/{reservation_id}/approve": {POST: "approveReservation"},
            "reservations/{reservation_id}/cancel": {POST: "cancelReservation"},
            "reservations/{reservation_id}/deny": {POST: "denyReservation"},
            "booking-permissions": {GET: "listBookingPermissions", POST: "createBookingPermission"},
            "booking-permissions/{permission_id}/revoke": {POST: "revokeBookingPermission"},
        },
    ),
    "catalog": Tag(
        "Templates and flavors.",
        {
            "catalog/preview": {POST: "previewCatalogEntries"},
            "templates": {GET: "listTemplates", POST: "createTemplate"},
            "templates/{slug}": {GET: "getTemplate", PATCH: "updateTemplate", DELETE: "deleteTemplate"},
            "templates/{slug}/versions": {GET: "listTemplateVersions"},
            "templates/{slug}/versions/{number}/restore": {POST: "restoreTemplateVersion"},
            "flavors": {GET: "listFlavors", POST: "createFlavor"},
            "flavors/{slug}": {GET: "getFlavor", PATCH: "updateFlavor", DELETE: "deleteFlavor"},
            "flavors/{slug}/versions": {GET: "listFlavorVersions"},
            "flavors/{slug}/versions/{number}/restore": {POST: "restoreFlavorVersion"},
        },
    ),
    "environments": Tag(
        "Software environments, their versions and builds.",
        {
            "environments": {GET: "listEnvironments", POST: "createEnvironment"},
            "environments/{slug}": {
                GET: "getEnvironment",
                PATCH: "updateEnvironment",
                DELETE: "deleteEnvironment",
            },
            "environments/{slug}/preview": {POST: "previewEnvironmentVersion"},
            "environments/{slug}/builds": {GET: "listEnvironmentBuilds", POST: "buildEnvironment"},
            "environments/{slug}/builds/{build_id}": {GET: "getEnvironmentBuild"},
            "environments/{slug}/builds/{build_id}/cancel": {POST: "cancelEnvironmentBuild"},
            "environments/{slug}/builds/{build_id}/log": {GET: "getEnvironmentBuildLog"},
            "environments/{slug}/builds/{build_id}/stream": {GET: "followEnvironmentBuild"},
            "environments/{slug}/versions": {GET: "listEnvironmentVersions"},
            "environments/{slug}/versions/{number}": {GET: "getEnvironmentVersion"},
            "environments/{slug}/versions/{number}/restore": {POST: "restoreEnvironmentVersion"},
        },
    ),
    "secrets": Tag(
        "Secrets of users, teams and templates, and dotfiles.",
        {
            "me/secrets": {GET: "listMySecrets"},
            "me/secrets/{name}": {
                GET: "getMySecret",
                PUT: "setMySecret",
                PATCH: "updateMySecret",
                DELETE: "deleteMySecret",
            },
            "teams/{slug}/secrets": {GET: "listTeamSecrets"},
            "teams/{slug}/secrets/{name}": {
                GET: "getTeamSecret",
                PUT: "setTeamSecret",
                PATCH: "updateTeamSecret",
                DELETE: "deleteTeamSecret",
            },
            "templates/{slug}/secrets": {GET: "listTemplateSecrets"},
            "templates/{slug}/secrets/{name}": {
                GET: "getTemplateSecret",
                PUT: "setTemplateSecret",
                PATCH: "updateTemplateSecret",
                DELETE: "deleteTemplateSecret",
            },
            "me/dotfiles": {GET: "getMyDotfiles", PUT: "setMyDotfiles"},
        },
    ),
    "quotas": Tag(
        "Quotas, limits, caps, cohorts and shares.",
        {
            "quotas": {GET: "listQuotas", POST: "createQuota"},
            "quotas/{quota_id}": {GET: "getQuota", PUT: "setQuota", DELETE: "deleteQuota"},
            "site-limits": {GET: "listSiteLimits"},
            "site-limits/{resource}": {GET: "getSiteLimit", PUT: "setSiteLimit", DELETE: "deleteSiteLimit"},
            "member-caps": {GET: "listMemberCaps", POST: "createMemberCap"},
            "member-caps/{cap_id}": {GET: "getMemberCap", PUT: "setMemberCap", DELETE: "deleteMemberCap"},
            "cohorts": {GET: "listCohorts", POST: "createCohort"},
            "cohorts/{slug}": {GET: "getCohort", PUT: "setCohort", DELETE: "deleteCohort"},
            "teams/{slug}/share": {GET: "getTeamShare", PUT: "setTeamShare"},
            "teams/{slug}/usage": {GET: "getTeamUsage"},
        },
    ),
    "requests": Tag(
        "Asking for more, approving, and who decides.",
        {
            "quota-requests": {GET: "listQuotaRequests", POST: "createQuotaRequest"},
            "quota-requests/{request_id}": {GET: "getQuotaRequest"},
            "quota-requests/{request_id}/approve": {POST: "approveQuotaRequest"},
            "quota-requests/{request_id}/deny": {POST: "denyQuotaRequest"},
            "quota-requests/{request_id}/cancel": {POST: "cancelQuotaRequest"},
            "grants": {GET: "listGrants"},
            "grants/{grant_id}/revoke": {POST: "revokeGrant"},
            "auto-approve-rules": {GET: "listAutoApproveRules", POST: "createAutoApproveRule"},
            "auto-approve-rules/{rule_id}": {
                GET: "getAutoApproveRule",
                PATCH: "updateAutoApproveRule",
                DELETE: "deleteAutoApproveRule",
            },
            "delegations": {GET: "listDelegations", POST: "createDelegation"},
            "delegations/{delegation_id}": {GET: "getDelegation"},
            "delegations/{delegation_id}/revoke": {POST: "revokeDelegation"},
            "inbox": {GET: "listInbox"},
        },
    ),
    "gpu-hours": Tag(
        "Ledgers of GPU-hours, what an hour costs, and budgets in money.",
        {
            "ledgers": {GET: "listLedgers"},
            "ledgers/{slug}": {GET: "getLedger", PUT: "setLedger", DELETE: "deleteLedger"},
            "ledgers/{slug}/credits": {POST: "creditLedger"},
            "ledger-entries": {GET: "listLedgerEntries"},
            "budgets": {GET: "listBudgets"},
            "budgets/{slug}": {GET: "getBudget", PUT: "setBudget", DELETE: "deleteBudget"},
            "rates": {GET: "listRates"},
            "rates/{resource}": {GET: "getRate", PUT: "setRate", DELETE: "deleteRate"},
        },
    ),
    "reclaim": Tag(
        "When idle and old workspaces end, and what GPUs did.",
        {
            "reclaim-policies": {GET: "listReclaimPolicies", POST: "createReclaimPolicy"},
            "reclaim-policies/preview": {POST: "previewReclaimPolicy"},
            "reclaim-policies/{policy_id}": {
                GET: "getReclaimPolicy",
                PATCH: "updateReclaimPolicy",
                DELETE: "deleteReclaimPolicy",
            },
            "reclaim-policies/{policy_id}/versions": {GET: "listReclaimPolicyVersions"},
            "reclaim-policies/{policy_id}/versions/{number}/restore": {POST: "restoreReclaimPolicyVersion"},
            "homes": {GET: "listHomes"},
            "homes/{home_id}": {GET: "getHome"},
            "homes/{home_id}/keep": {POST: "keepHome"},
            "homes/{home_id}/restore": {POST: "restoreHome"},
            "homes/{home_id}/delete": {POST: "deleteHome"},
            "reports/gpu-use": {GET: "getGpuUseReport"},
        },
    ),
    "gpus": Tag(
        "Pools, nodes, devices and their checks.",
        {
            "pools": {GET: "listPools", POST: "createPool"},
            "pools/{slug}": {GET: "getPool", PATCH: "updatePool", DELETE: "deletePool"},
            "pools/{slug}/checks": {GET: "getPoolChecks", PUT: "setPoolChecks"},
            "pools/{slug}/missing": {GET: "listPoolMissing"},
            "pools/{slug}/versions": {GET: "listPoolVersions"},
            "pools/{slug}/versions/{number}/restore": {POST: "restorePoolVersion"},
            "nodes": {GET: "listNodes"},
            "nodes/{node_id}": {GET: "getNode"},
            "nodes/{node_id}/cordon": {POST: "cordonNode"},
            "nodes/{node_id}/drain": {POST: "drainNode"},
            "nodes/{node_id}/uncordon": {POST: "uncordonNode"},
            "devices": {GET: "listDevices"},
            "devices/{device_id}": {GET: "getDevice"},
            "devices/{device_id}/cordon": {POST: "cordonDevice"},
            "devices/{device_id}/drain": {POST: "drainDevice"},
            "devices/{device_id}/reset": {POST: "resetDevice"},
            "nodes/{node_id}/check-link": {POST: "checkNodeLink"},
            "devices/{device_id}/uncordon": {POST: "uncordonDevice"},
            "devices/{device_id}/samples": {GET: "getDeviceSamples"},
            "gpu-checks": {GET: "listGpuChecks", POST: "runGpuCheck"},
            "gpu-checks/{check_id}": {GET: "getGpuCheck"},
            "gpu-checks/{check_id}/cancel": {POST: "cancelGpuCheck"},
            "gpu-checks/{check_id}/stream": {GET: "followGpuCheck"},
            "schemas/gpu-check": {GET: "getGpuCheckSchema"},
        },
    ),
    "machines": Tag(
        "Machines that join, the homes on them, and what nobody owns.",
        {
            "machines": {GET: "listMachines"},
            "machines/{machine_id}": {GET: "getMachine", DELETE: "deleteMachine"},
            "machines/{machine_id}/delete": {POST: "deleteMachineWithLosses"},
            "machines/{machine_id}/losses": {GET: "getMachineLosses"},
            "machines/{machine_id}/revoke": {POST: "revokeMachine"},
            "pools/{slug}/join-tokens": {GET: "listJoinTokens", POST: "createJoinToken"},
            "pools/{slug}/join-tokens/{join_token_id}/revoke": {POST: "revokeJoinToken"},
            "nodes/{node_id}/homes": {GET: "getNodeHomes", POST: "evacuateNodeHomes"},
            "home-moves": {GET: "listHomeMoves", POST: "moveHome"},
            "home-moves/{home_move_id}": {GET: "getHomeMove"},
            "home-moves/{home_move_id}/cancel": {POST: "cancelHomeMove"},
            "home-evacuations": {GET: "listHomeEvacuations"},
            "home-evacuations/{home_evacuation_id}": {GET: "getHomeEvacuation"},
            "home-evacuations/{home_evacuation_id}/cancel": {POST: "cancelHomeEvacuation"},
            "lost-homes": {GET: "listLostHomes"},
            "lost-homes/{lost_home_id}/recreate": {POST: "recreateLostHome"},
            "orphans": {GET: "listOrphans"},
            "orphans/{orphan_id}": {GET: "getOrphan"},
            "orphans/{orphan_id}/delete": {POST: "deleteOrphan"},
            "rebalance-proposals": {GET: "listRebalanceProposals"},
            "rebalance-proposals/{proposal_id}": {GET: "getRebalanceProposal"},
            "rebalance-proposals/{proposal_id}/apply": {POST: "applyRebalanceProposal"},
            "rebalance-proposals/{proposal_id}/dismiss": {POST: "dismissRebalanceProposal"},
        },
    ),
    "teams": Tag(
        "Teams, their members, joining them, and what their workspaces may reach.",
        {
            "teams": {GET: "listTeams", POST: "createTeam"},
            "teams/{slug}": {GET: "getTeam"},
            "teams/{slug}/members": {GET: "listTeamMembers"},
            "teams/{slug}/members/{username}": {GET: "getTeamMember", PUT: "setTeamMember"},
            "teams/{slug}/members/{username}/revoke": {POST: "revokeTeamMember"},
            "teams/{slug}/egress": {GET: "getTeamEgress", PUT: "setTeamEgress"},
            "teams/{slug}/egress/versions": {GET: "listTeamEgressVersions"},
            "teams/{slug}/egress/versions/{number}/restore": {POST: "restoreTeamEgressVersion"},
            "teams/{slug}/join-requests": {POST: "requestToJoinTeam"},
            "join-requests": {GET: "listJoinRequests"},
            "join-requests/{join_id}": {GET: "getJoinRequest"},
            "join-requests/{join_id}/approve": {POST: "approveJoinRequest"},
            "join-requests/{join_id}/cancel": {POST: "cancelJoinRequest"},
            "join-requests/{join_id}/deny": {POST: "denyJoinRequest"},
            "joinable-teams": {GET: "listJoinableTeams"},
        },
    ),
    "users": Tag(
        "People, and how they sign in.",
        {
            "me": {GET: "getMe", DELETE: "deleteMe"},
            "users": {GET: "listUsers", POST: "inviteUser"},
            "users/{username}": {GET: "getUser", PATCH: "updateUser", DELETE: "deleteUser"},
            "users/{username}/deactivate": {POST: "deactivateUser"},
            "users/{username}/sessions/revoke": {POST: "revokeUserSessions"},
            "users/{username}/invite": {POST: "inviteUserAgain"},
            "users/{username}/reactivate": {POST: "reactivateUser"},
            "users/{username}/reset-mfa": {POST: "resetUserMfa"},
            "users/{username}/reset-password": {POST: "resetUserPassword"},
            "users/{username}/sign-ins": {GET: "listUserSignIns"},
            "sign-in-providers": {GET: "listSignInProviders"},
            "sign-in-providers/{idp}": {GET: "getSignInProvider"},
            "sign-in-providers/{idp}/links": {GET: "listSignInLinks", POST: "createSignInLink"},
            "sign-in-providers/{idp}/links/{username}": {DELETE: "deleteSignInLink"},
            "sign-in-providers/{idp}/preview": {POST: "previewSignIn"},
            "sign-in-providers/{idp}/test": {POST: "testSignInProvider"},
        },
    ),
    "tokens": Tag(
        "API tokens, service accounts and the exchange of a CI job's token.",
        {
            "tokens": {GET: "listTokens", POST: "createToken"},
            "tokens/{token_id}": {GET: "getToken"},
            "tokens/{token_id}/revoke": {POST: "revokeToken"},
            "tokens/{token_id}/rotate": {POST: "rotateToken"},
            "token-exchange": {POST: "exchangeToken"},
            "teams/{slug}/service-accounts": {GET: "listServiceAccounts", POST: "createServiceAccount"},
            "teams/{slug}/service-accounts/{username}": {
                GET: "getServiceAccount",
                PATCH: "updateServiceAccount",
                DELETE: "deleteServiceAccount",
            },
            "teams/{slug}/service-accounts/{username}/deactivate": {POST: "deactivateServiceAccount"},
            "teams/{slug}/service-accounts/{username}/reactivate": {POST: "reactivateServiceAccount"},
            "teams/{slug}/service-accounts/{username}/tokens": {
                GET: "listServiceAccountTokens",
                POST: "createServiceAccountToken",
            },
            "teams/{slug}/service-accounts/{username}/trust-rules": {
                GET: "listTrustRules",
                POST: "createTrustRule",
            },
            "teams/{slug}/service-accounts/{username}/trust-rules/check": {POST: "checkTrustRules"},
            "teams/{slug}/service-accounts/{username}/trust-rules/{trust_id}": {
                GET: "getTrustRule",
                DELETE: "deleteTrustRule",
            },
        },
    ),
    "notices": Tag(
        "What happens: events, notices, the channels they go out by, webhooks and the audit log.",
        {
            "notifications": {GET: "listNotifications"},
            "notifications/read": {POST: "markAllNotificationsRead"},
            "notifications/{notification_id}/read": {POST: "markNotificationRead"},
            "notice-channels": {GET: "listNoticeChannels", POST: "createNoticeChannel"},
            "notice-channels/{channel_id}": {
                GET: "getNoticeChannel",
                PATCH: "updateNoticeChannel",
                DELETE: "deleteNoticeChannel",
            },
            "notice-channels/{channel_id}/messages": {GET: "listNoticeChannelMessages"},
            "notice-channels/{channel_id}/test": {POST: "testNoticeChannel"},
            "webhooks": {GET: "listWebhooks", POST: "createWebhook"},
            "teams/{slug}/webhooks": {GET: "listTeamWebhooks", POST: "createTeamWebhook"},
            "webhooks/{webhook_id}": {GET: "getWebhook", PATCH: "updateWebhook", DELETE: "deleteWebhook"},
            "webhooks/{webhook_id}/rotate-secret": {POST: "rotateWebhookSecret"},
            "webhooks/{webhook_id}/test": {POST: "testWebhook"},
            "webhooks/{webhook_id}/deliveries": {GET: "listWebhookDeliveries"},
            "webhooks/{webhook_id}/deliveries/{delivery_id}": {GET: "getWebhookDelivery"},
            "webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": {POST: "redeliverWebhook"},
            "webhook-event-types": {GET: "listWebhookEventTypes"},
            "events": {GET: "listEvents"},
            "events/stream": {GET: "followEvents"},
            "audit-entries": {GET: "listAuditEntries"},
            "audit-streams": {GET: "listAuditStreams"},
        },
    ),
    "site": Tag(
        "The site as a file, and which Berth it is.",
        {
            "version": {GET: "getVersion"},
            "site": {GET: "exportSite"},
            "site/plan": {POST: "planSite"},
            "site/apply": {POST: "applySite"},
        },
    ),
}

NAMES: Mapping[tuple[str, str], tuple[str, str]] = {
    (method, path): (name, tag)
    for tag, group in TAGS.items()
    for path, names in group.paths.items()
    for method, name in names.items()
}
"""(method, path) → (name, tag)."""


def name_and_tag(method: str, path: str) -> tuple[str, str] | None:
    """The name and the tag of an operation, or None where nobody has given it one yet."""
    return NAMES.get((method.upper(), path.removeprefix("/api/v1/").rstrip("/")))
