"""Static SCIM documents (RFC 7643, sections 5 to 7)."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from portal.people.scim.resources import GROUP, USER

MAX_PAGE = 200
SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:Schema"
RESOURCE_TYPE = "urn:ietf:params:scim:schemas:core:2.0:ResourceType"
CONFIG = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"


def service_provider_config() -> dict[str, Any]:
    """Return the ServiceProviderConfig document."""
    return {
        "schemas": [CONFIG],
        "documentationUri": "https://www.rfc-editor.org/rfc/rfc7644",
        "patch": {"supported": True},
        "bulk": {"supported": False, "maxOperations": 0, "maxPayloadSize": 0},
        "filter": {"supported": True, "maxResults": MAX_PAGE},
        "changePassword": {"supported": False},
        "sort": {"supported": False},
        "etag": {"supported": True},
        "authenticationSchemes": [
            {
                "type": "oauthbearertoken",
                "name": "Bearer token",
                "description": "A token with the scope scim, created by an administrator.",
                "specUri": "https://www.rfc-editor.org/rfc/rfc6750",
                "primary": True,
            }
        ],
        "meta": _meta("ServiceProviderConfig", "ServiceProviderConfig"),
    }


def resource_types() -> list[dict[str, Any]]:
    """Return the ResourceType documents of users and groups."""
    return [
        {
            "schemas": [RESOURCE_TYPE],
            "id": name,
            "name": name,
            "endpoint": f"/{name}s",
            "description": description,
            "schema": schema,
            "meta": _meta("ResourceType", f"ResourceTypes/{name}"),
        }
        for name, description, schema in (
            ("User", "An account", USER),
            ("Group", "A group, which rules map to team memberships and roles", GROUP),
        )
    ]


def schemas() -> list[dict[str, Any]]:
    """Return the Schema documents of supported attributes. Other attributes from clients are ignored."""
    return [
        {
            "schemas": [SCHEMA],
            "id": urn,
            "name": name,
            "description": description,
            "attributes": attributes,
            "meta": _meta("Schema", f"Schemas/{urn}"),
        }
        for urn, name, description, attributes in (
            (USER, "User", "User account", _USER_ATTRIBUTES),
            (GROUP, "Group", "Group", _GROUP_ATTRIBUTES),
        )
    ]


def _meta(kind: str, path: str) -> dict[str, str]:
    return {"resourceType": kind, "location": f"{settings.BERTH_PUBLIC_URL}/scim/v2/{path}"}


def _attribute(name: str, description: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "string",
        "multiValued": False,
        "description": description,
        "required": False,
        "caseExact": False,
        "mutability": "readWrite",
        "returned": "default",
        "uniqueness": "none",
        **more,
    }


_EXTERNAL_ID = _attribute("externalId", "The identifier at the provider.", caseExact=True)
_REF = {"type": "reference", "caseExact": True}
_USER_ATTRIBUTES = [
    _attribute(
        "userName",
        "An e-mail address, or letters, digits, dots, hyphens and underscores. It never changes.",
        required=True,
        mutability="immutable",
        uniqueness="server",
    ),
    _EXTERNAL_ID,
    _attribute("displayName", "The person's name as shown by the provider."),
    _attribute(
        "name",
        "The person's name.",
        type="complex",
        subAttributes=[
            _attribute("givenName", "First name."),
            _attribute("familyName", "Last name."),
        ],
    ),
    _attribute(
        "emails",
        "Only one address is stored: the primary one, else the one for work.",
        type="complex",
        multiValued=True,
        subAttributes=[
            _attribute("value", "The address.", uniqueness="server"),
            _attribute(
                "type", "Type of the address; work by default.", canonicalValues=["work", "home", "other"]
            ),
            _attribute("primary", "Whether it is the preferred one; true by default.", type="boolean"),
        ],
    ),
    _attribute("active", "Whether the account can be used.", type="boolean"),
    _attribute(
        "groups",
        "Groups that the user is in.",
        type="complex",
        multiValued=True,
        mutability="readOnly",
        subAttributes=[
            _attribute("value", "The group's identifier.", mutability="readOnly", caseExact=True),
            _attribute("display", "The group's name.", mutability="readOnly"),
            _attribute("$ref", "URL of the group.", referenceTypes=["Group"], mutability="readOnly", **_REF),
        ],
    ),
]
_GROUP_ATTRIBUTES = [
    _attribute("displayName", "Name of the group, as used in rules.", required=True, uniqueness="server"),
    _EXTERNAL_ID,
    _attribute(
        "members",
        "Users in the group. Groups in groups are not supported.",
        type="complex",
        multiValued=True,
        subAttributes=[
            _attribute("value", "The user's identifier.", mutability="immutable", caseExact=True),
            _attribute("type", "Always User.", mutability="immutable", canonicalValues=["User"]),
            _attribute("$ref", "URL of the user.", referenceTypes=["User"], mutability="immutable", **_REF),
        ],
    ),
]
