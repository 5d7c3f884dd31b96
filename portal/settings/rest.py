"""Django REST framework and the OpenAPI document."""

from __future__ import annotations

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.accounts.authentication.TokenAuthentication",
        "portal.accounts.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["portal.accounts.authentication.HasScope"],
    "DEFAULT_THROTTLE_CLASSES": ["portal.accounts.throttles.RequestThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["portal.common.json_output.JsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.common.json_input.JsonParser"],
    # No `?format=`: what is wanted is said by `Accept`.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_PAGINATION_CLASS": "portal.common.pagination.Pages",
    "DEFAULT_FILTER_BACKENDS": ["portal.common.filtering.FilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "portal.openapi.schema.Schema",
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
        "portal.openapi.document.complete",
    ],
    "ENUM_NAME_OVERRIDES": {
        "AccountStatusEnum": "portal.accounts.models.AccountStatus",
        "IssuedTokenTypeEnum": "portal.service_accounts.exchange.grant.TOKEN_TYPES",
        "AccountKindEnum": "portal.accounts.models.AccountKind",
        "SecretKindEnum": "portal.workspace_secrets.models.SecretKind",
        "SiteRoleEnum": "portal.accounts.models.SiteRole",
        "JoinStatusEnum": "portal.join_requests.models.JoinStatus",
        "InboxItemKindEnum": "portal.inbox.items.ItemKind",
        "QuotaRequestKindEnum": "portal.quota_requests.models.RequestKind",
        "QuotaRequestStatusEnum": "portal.quota_requests.models.RequestStatus",
        "GpuCheckKindEnum": "portal.gpu_checks.models.CheckKind",
        "GpuCheckLevelEnum": "portal.inventory.models.CheckLevel",
        "GpuCheckCauseEnum": "portal.gpu_checks.models.CheckCause",
        "GpuCheckStatusEnum": "portal.gpu_checks.models.CheckStatus",
        "GpuCheckVerdictEnum": "portal.gpu_checks.models.CheckVerdict",
        "ChannelMessageStatusEnum": "portal.channels.models.MessageStatus",
        "WebhookDeliveryStatusEnum": "portal.webhooks.models.DeliveryStatus",
        "ReservationStatusEnum": "portal.reservations.models.ReservationStatus",
        "PlacementCodeEnum": "portal.common.reasons.codes.PlacementCode",
        "EnvironmentVersionStateEnum": "portal.environments.models.VersionState",
        "EnvironmentBuildStateEnum": "portal.environments.models.BuildState",
        "EnvironmentKindEnum": "portal.environments.models.Kind",
        "EnvironmentSourceKindEnum": "portal.environments.models.SourceKind",
    },
}
