"""Configuration of sign-in providers, read from a TOML file or environment variables.

Independent of Django. docs/sign-in.md describes the format. Secrets are references (`env:NAME`, `file:PATH`)
and are read when used.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from portal.people.identity import patterns

ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z")
TEAM_ROLES = ("viewer", "member", "owner")
"""Team roles, from least to most permissions."""
SITE_ROLES = ("administrator", "operator", "approver", "auditor")
LINKS = ("email", "username")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class ConfigError(Exception):
    """The configuration is invalid. `problems` has a message for each error."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    pass


class Condition(_Part, frozen=True, kw_only=True):
    """A condition on a sign-in: on a group, on a claim, or none (`everyone`).

    Values are compared literally (`group`, `equals`) or by a regular expression that matches the whole value
    (`group_pattern`, `pattern`). A list claim meets the condition if any of its values does.
    """

    group: str = ""
    group_pattern: str = ""
    claim: str = ""
    equals: str | int | bool | None = None
    pattern: str = ""
    everyone: bool = False

    def problems(self) -> list[str]:
        """Return messages about errors in the condition."""
        kinds = [bool(self.group), bool(self.group_pattern), bool(self.claim), self.everyone]
        if sum(kinds) != 1:
            return ["set exactly one of group, group_pattern, claim and everyone."]
        if self.claim and (self.equals is None) == (not self.pattern):
            return [f"set either equals or pattern for the claim “{self.claim}”."]
        if not self.claim and (self.equals is not None or self.pattern):
            return ["equals and pattern require a claim."]
        return _bad_pattern("group_pattern", self.group_pattern) + _bad_pattern("pattern", self.pattern)

    def as_text(self) -> str:
        """Return the condition as text."""
        if self.everyone:
            return "everyone"
        if self.group or self.group_pattern:
            return f"group “{self.group}”" if self.group else f"group ~ {self.group_pattern}"
        if self.pattern:
            return f"{self.claim} ~ {self.pattern}"
        return f"{self.claim} = {str(self.equals).lower() if isinstance(self.equals, bool) else self.equals}"


class Rule(Condition, frozen=True, kw_only=True):
    r"""Grants a team membership or a site role if the condition is met.

    `team` may refer to groups of the pattern, as `\1` or `\g<name>`. A missing team is created only with
    `create_team`.
    """

    team: str = ""
    role: str = "member"
    create_team: bool = False
    site_role: str = ""

    def problems(self) -> list[str]:
        problems = super().problems()
        if bool(self.team) == bool(self.site_role):
            problems.append("set either team or site_role.")
        if self.role not in TEAM_ROLES:
            problems.append(f"role must be one of {', '.join(TEAM_ROLES)}, not “{self.role}”.")
        if self.site_role and self.site_role not in SITE_ROLES:
            problems.append(f"site_role must be one of {', '.join(SITE_ROLES)}, not “{self.site_role}”.")
        if self.create_team and not self.team:
            problems.append("create_team requires a team.")
        if "\\" in self.team and not (self.group_pattern or self.pattern):
            problems.append(f"the team “{self.team}” refers to a pattern, but no pattern is set.")
        elif "\\" in self.team and not problems:
            problems += _bad_template(self.group_pattern or self.pattern, self.team)
        return problems


class Claims(_Part, frozen=True, kw_only=True):
    """Names of the claims. Dots address nested claims (`realm_access.roles`)."""

    subject: str = "sub"
    username: str = "preferred_username"
    email: str = "email"
    email_verified: str = "email_verified"
    name: str = "name"
    first_name: str = "given_name"
    last_name: str = "family_name"
    groups: str = "groups"


class SamlClaims(Claims, frozen=True, kw_only=True):
    """The usual attributes of SAML providers."""

    subject: str = "NameID"
    username: str = "NameID"
    first_name: str = "givenName"
    last_name: str = "sn"


class LdapClaims(Claims, frozen=True, kw_only=True):
    """The usual attributes of directories."""

    subject: str = "entryUUID"
    username: str = "uid"
    email: str = "mail"
    name: str = "cn"
    first_name: str = "givenName"
    last_name: str = "sn"


class Provider(_Part, frozen=True, kw_only=True, tag_field="kind"):
    """Settings common to all kinds of providers."""

    id: str
    name: str
    enabled: bool = True
    claims: Claims = Claims()
    username_pattern: str = ""
    trust_email: bool = False
    create_accounts: bool = True
    link: tuple[str, ...] = ()
    require: tuple[Condition, ...] = ()
    rules: tuple[Rule, ...] = ()
    mfa: tuple[Condition, ...] = ()

    @property
    def kind(self) -> str:
        """`oidc`, `saml` or `ldap`."""
        return str(self.__struct_config__.tag)

    @property
    def secrets(self) -> dict[str, str]:
        """References to secrets by setting."""
        return {}

    def problems(self) -> list[str]:
        """Return messages about errors, each beginning with its location."""
        problems = []
        if not ID.match(self.id):
            problems.append("id: use up to 40 lower-case letters, digits and hyphens.")
        if not self.name.strip():
            problems.append("name: enter the name that users see.")
        problems += [
            f"link: “{name}” is not one of {', '.join(LINKS)}." for name in self.link if name not in LINKS
        ]
        problems += [f"username_pattern: {problem}" for problem in _bad_pattern("it", self.username_pattern)]
        if self.username_pattern and not problems and re.compile(self.username_pattern).groups < 1:
            problems.append("username_pattern: put parentheses around the part that is the username.")
        for field in ("require", "rules", "mfa"):
            for number, rule in enumerate(getattr(self, field), 1):
                problems += [f"{field} {number}: {problem}" for problem in rule.problems()]
        for field, reference in self.secrets.items():
            try:
                read_secret(reference)
            except ConfigError as error:
                problems += [f"{field}: {problem}" for problem in error.problems]
        return problems


class Oidc(Provider, frozen=True, kw_only=True, tag="oidc"):
    """An OpenID Connect provider, located by its issuer's discovery document."""

    issuer: str
    client_id: str
    client_secret: str = ""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    userinfo: bool = True
    sign_out_everywhere: bool = False
    clock_skew_s: int = 60

    @property
    def secrets(self) -> dict[str, str]:
        return {"client_secret": self.client_secret} if self.client_secret else {}

    def problems(self) -> list[str]:
        problems = super().problems() + _bad_url("issuer", self.issuer)
        if "openid" not in self.scopes:
            problems.append("scopes: “openid” is missing.")
        if not self.client_id:
            problems.append("client_id: enter the id of the client.")
        if not 0 <= self.clock_skew_s <= 300:
            problems.append("clock_skew_s: must be from 0 to 300 seconds.")
        return problems


class Saml(Provider, frozen=True, kw_only=True, tag="saml"):
    """A SAML 2.0 identity provider, described by values from its metadata."""

    entity_id: str
    sso_url: str
    certificate: str
    claims: SamlClaims = SamlClaims()

    @property
    def secrets(self) -> dict[str, str]:
        return {"certificate": self.certificate}

    def problems(self) -> list[str]:
        problems = super().problems() + _bad_url("sso_url", self.sso_url)
        if not problems and "BEGIN CERTIFICATE" not in read_secret(self.certificate):
            problems.append("certificate: not a certificate in PEM format.")
        return problems


class Ldap(Provider, frozen=True, kw_only=True, tag="ldap"):
    """An LDAP directory, queried with name and password from the sign-in page."""

    url: str
    bind_dn: str = ""
    bind_password: str = ""
    start_tls: bool = False
    ca_file: str = ""
    user_base: str
    user_filter: str = "(uid=%(user)s)"
    group_base: str = ""
    group_filter: str = "(objectClass=groupOfNames)"
    group_type: str = "groupOfNames"
    timeout_s: int = 5
    claims: LdapClaims = LdapClaims()
    trust_email: bool = True

    @property
    def secrets(self) -> dict[str, str]:
        return {"bind_password": self.bind_password} if self.bind_password else {}

    def problems(self) -> list[str]:
        problems = super().problems()
        parts = urlsplit(self.url)
        if parts.scheme not in ("ldap", "ldaps", "ldapi"):
            problems.append("url: write ldaps://host or ldap://host.")
        elif parts.scheme == "ldap" and not self.start_tls and parts.hostname not in LOCAL_HOSTS:
            problems.append("url: passwords would cross the network unencrypted; use ldaps:// or start_tls.")
        if "%(user)s" not in self.user_filter:
            problems.append("user_filter: %(user)s is missing, the placeholder for the username.")
        if self.ca_file and not Path(self.ca_file).is_file():
            problems.append(f"ca_file: file {self.ca_file} not found.")
        if self.group_type not in GROUP_TYPES:
            problems.append(f"group_type: must be one of {', '.join(GROUP_TYPES)}.")
        if not 1 <= self.timeout_s <= 30:
            problems.append("timeout_s: must be from 1 to 30 seconds.")
        return problems


GROUP_TYPES = ("groupOfNames", "groupOfUniqueNames", "posixGroup", "activeDirectory")


class Scim(_Part, frozen=True, kw_only=True):
    """Settings for accounts and groups provisioned by SCIM.

    - `provider`: the sign-in provider of provisioned users. Its group rules apply, too.
    - `adopt`: SCIM may take over existing accounts.
    - `delete_accounts`: deleting by SCIM deletes the account instead of deactivating it.
    """

    provider: str = ""
    adopt: bool = False
    delete_accounts: bool = False
    rules: tuple[Rule, ...] = ()

    def problems(self, providers: list[str]) -> list[str]:
        """Return messages about errors. `providers` are the ids of all providers."""
        problems = []
        if self.provider and self.provider not in providers:
            problems.append(f"provider: sign-in provider “{self.provider}” not found.")
        for number, rule in enumerate(self.rules, 1):
            problems += [f"rules {number}: {problem}" for problem in rule.problems()]
            if rule.claim:
                problems.append(f"rules {number}: SCIM has groups but no claims; set group or group_pattern.")
        return problems


class _File(_Part, frozen=True, kw_only=True):
    provider: tuple[Oidc | Saml | Ldap, ...] = ()
    scim: Scim = Scim()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Complete configuration from file and variables."""

    providers: tuple[Oidc | Saml | Ldap, ...]
    scim: Scim


def load(path: str, environ: Mapping[str, str]) -> Configuration:
    """Load the providers from the file `path` (if not empty) and from `BERTH_OIDC_…`, and the SCIM settings.

    Raises `ConfigError` with all errors.
    """
    providers: list[Oidc | Saml | Ldap] = []
    scim = Scim()
    if path:
        try:
            file = msgspec.convert(tomllib.loads(Path(path).read_text()), _File)
            providers, scim = list(file.provider), file.scim
        except OSError as error:
            raise ConfigError([f"{path} cannot be read ({error.strerror})."]) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError([f"{path} is not valid TOML: {error}."]) from error
        except msgspec.ValidationError as error:
            raise ConfigError([f"{path}: {error}."]) from error
    if environ.get("BERTH_OIDC_ISSUER"):
        providers.append(_provider_from_variables(environ))
    problems = [
        f"{provider.id or 'a provider'}: {problem}"
        for provider in providers
        for problem in provider.problems()
    ]
    ids = [provider.id for provider in providers]
    problems += [
        f"{provider_id}: two providers have this id."
        for provider_id in sorted({i for i in ids if ids.count(i) > 1})
    ]
    problems += [f"scim: {problem}" for problem in scim.problems(ids)]
    if problems:
        raise ConfigError(problems)
    return Configuration(tuple(providers), scim)


def _provider_from_variables(environ: Mapping[str, str]) -> Oidc:
    """Return the OpenID Connect provider described by the variables."""
    team = environ.get("BERTH_OIDC_TEAM", "")
    return Oidc(
        id="oidc",
        name=environ.get("BERTH_OIDC_NAME", "") or "Single sign-on",
        issuer=environ["BERTH_OIDC_ISSUER"],
        client_id=environ.get("BERTH_OIDC_CLIENT_ID", ""),
        client_secret="env:BERTH_OIDC_CLIENT_SECRET" if environ.get("BERTH_OIDC_CLIENT_SECRET") else "",
        username_pattern=environ.get("BERTH_OIDC_USERNAME_PATTERN", ""),
        claims=Claims(username=environ.get("BERTH_OIDC_USERNAME_CLAIM", "") or Claims().username),
        rules=(Rule(everyone=True, team=team),) if team else (),
    )


def read_secret(reference: str) -> str:
    """Return the secret that a reference names. Raises `ConfigError`, never with the secret."""
    scheme, _, name = reference.partition(":")
    if scheme == "env" and name:
        if value := os.environ.get(name, ""):
            return value
        raise ConfigError([f"the variable {name} is not set."])
    if scheme == "file" and name:
        try:
            value = Path(name).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"the file {name} cannot be read."]) from error
        if value:
            return value
        raise ConfigError([f"the file {name} is empty."])
    raise ConfigError(["write env:NAME or file:PATH, not the secret itself."])


def _bad_pattern(field: str, pattern: str) -> list[str]:
    try:
        re.compile(pattern)
    except re.error as error:
        return [f"{field} is not a valid regular expression ({error})."]
    if patterns.is_slow_pattern(pattern):
        return [
            f"{field} could take too long. Use * and + at most three times, and not inside a repeated group."
            " Write a set of characters instead, such as [a-z.-]+."
        ]
    return []


def _bad_template(pattern: str, template: str) -> list[str]:
    """Return an error if `team` refers to a group that its pattern does not have."""
    compiled = re.compile(pattern)
    groups: list[Any] = [int(group) for group in re.findall(r"\\(\d)", template)]
    groups += re.findall(r"\\g<(\w+)>", template)
    missing = [
        group
        for group in groups
        if (isinstance(group, int) and group > compiled.groups)
        or (isinstance(group, str) and group not in compiled.groupindex)
    ]
    if missing or not groups:
        return [f"the team “{template}” refers to a group that its pattern does not have."]
    return []


def _bad_url(field: str, url: str) -> list[str]:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return []
    if parts.scheme == "http" and parts.hostname in LOCAL_HOSTS:
        return []
    return [f"{field}: write an https address (http only for this machine)."]
