"""Django REST framework and the OpenAPI document."""

from __future__ import annotations

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.people.accounts.authentication.TokenAuthentication",
        "portal.people.accounts.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["portal.people.accounts.authentication.HasScope"],
    "DEFAULT_THROTTLE_CLASSES": ["portal.people.accounts.throttles.RequestThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["portal.common.json_output.JsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.common.json_input.JsonParser"],
    # No `?format=`: clients use the `Accept` header.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_PAGINATION_CLASS": "portal.common.pagination.Pages",
    "DEFAULT_FILTER_BACKENDS": ["portal.common.filtering.FilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "portal.web.openapi.schema.Schema",
    "EXCEPTION_HANDLER": "portal.common.problems.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Berth",
    "DESCRIPTION": "GPU workspaces under quotas. Errors are RFC 9457 problem details.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "portal.web.openapi.document.complete",
    ],
    "ENUM_NAME_OVERRIDES": {
        "AccountStateEnum": "portal.people.accounts.models.AccountState",
        "IssuedTokenTypeEnum": "portal.people.service_accounts.exchange.grant.TOKEN_TYPES",
        "AccountKindEnum": "portal.people.accounts.models.AccountKind",
        "SecretKindEnum": "portal.workspaces.secrets.models.SecretKind",
        "SiteRoleEnum": "portal.people.accounts.models.SiteRole",
        "JoinStateEnum": "portal.people.join_requests.models.JoinState",
        "InboxItemKindEnum": "portal.web.inbox.items.ItemKind",
        "QuotaRequestKindEnum": "portal.quota.requests.models.RequestKind",
        "QuotaRequestStateEnum": "portal.quota.requests.models.RequestState",
        "ReasonEnum": "portal.workspaces.lifecycle.TerminationReason",
        "KeptReasonEnum": "portal.reports.idle_api.KEPT_REASONS",
        "GpuCheckKindEnum": "portal.gpu_checks.models.CheckKind",
        "GpuCheckLevelEnum": "portal.fleet.inventory.models.CheckLevel",
        "GpuCheckCauseEnum": "portal.gpu_checks.models.CheckCause",
        "GpuCheckStateEnum": "portal.gpu_checks.models.RunState",
        "GpuCheckVerdictEnum": "portal.gpu_checks.models.CheckVerdict",
        "ChannelMessageStateEnum": "portal.notify.channels.models.MessageState",
        "WebhookDeliveryStateEnum": "portal.notify.webhooks.models.DeliveryState",
        "ReservationStateEnum": "portal.quota.reservations.models.ReservationState",
        "PlacementCodeEnum": "portal.scheduling.engine.codes.PlacementCode",
        "EnvironmentVersionStateEnum": "portal.catalog.environments.models.VersionState",
        "EnvironmentBuildStateEnum": "portal.catalog.environments.models.BuildState",
        "EnvironmentKindEnum": "portal.catalog.environments.models.Kind",
        "EnvironmentSourceKindEnum": "portal.catalog.environments.models.SourceKind",
    },
}
