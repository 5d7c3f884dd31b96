"""Validates templates and flavors beyond their columns, and finds warnings.

Functions collect problems and raise nothing: they return or fill `{field: [reason]}`, or return a list of
`Finding`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from portal.catalog.codes import CatalogCode
from portal.catalog.environments import policies as environment_policies
from portal.catalog.environments import selectors as environments
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import Environment, Kind
from portal.catalog.environments.sources import NOTEBOOK_PROGRAMS
from portal.catalog.models import MAX_ACCELERATORS, Flavor, Template, TemplateEgress
from portal.catalog.repositories.rules import problems_of
from portal.common.json_input import storable
from portal.common.reasons.reason import Reason
from provisioning import mounts
from provisioning.egress_rules import policy_of
from provisioning.errors import InvalidSpec
from provisioning.types import WHOLE_DEVICE_MILLI

Problems = dict[str, list[Reason]]
PLACEHOLDERS = ("port", "home", "token", "token_file", "name")
ICONS = (
    "anchor", "bolt", "book-2", "box", "code", "cpu-2", "cube", "file-text", "notebook", "settings",
    "stack-2", "terminal-2",
)  # fmt: skip
"""Icons of the sprite that represent programs."""
MAX_ARGUMENTS = 100
MAX_ARGUMENT = 16_000
MAX_VARIABLES = 100
MAX_VALUE = 8000
_PLACEHOLDER = re.compile(r"\{([a-z_]{1,30})\}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
RESERVED_PREFIXES = ("BERTH_", "NVIDIA_", "LD_")
RESERVED_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HOME", "USER", "LOGNAME"})
"""Variables that templates cannot set: devices, account, and program loading."""
_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]*\Z")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SECRET = re.compile(
    r"\b(?:gh[pousr]_\w{20}|github_pat_\w{20}|glpat-[\w-]{16}|hf_\w{20}|sk-[\w-]{20}|xox[abprs]-[\w-]{10}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30}|npm_\w{30}|berth_\w{20})|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SECRET_NAME = re.compile(
    r"(?i)(?:^|[_-])(?:password|passwd|secret|token|api[_-]?key|credentials?)(?:$|[_-])"
)
# Arguments have up to 1.6 MB in total, so each pattern matches only at the start of a word.
_OPTION = re.compile(r"(?<![\w.-])([\w.-]++)=(?=[^{}\s]{4})")
_SECRET_WORD = re.compile(r"password|passwd|secret|token|api-?key", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?<=[a-z0-9+.-])://[^/\s:@{}]+:[^/\s@{}]+@")


@dataclass(frozen=True, slots=True)
class Finding:
    """A warning about a field: its value is valid, but should be checked."""

    field: str
    reason: Reason


def template_problems(template: Template) -> Problems:
    """Return the problems that prevent saving a template."""
    problems: Problems = {}
    _texts(template, ("name", "description", "program", "install_hint"), problems)
    if template.icon and template.icon not in ICONS:
        problems["icon"] = [Reason(CatalogCode.NO_SUCH_ICON, {"icon": template.icon, "known": list(ICONS)})]
    for field in ("ready_path", "open_path"):
        path = getattr(template, field)
        if not _PATH.match(path) or ".." in path.split("?")[0].split("/"):
            problems[field] = [Reason(CatalogCode.PATH_INVALID, {"path": path})]
    if template.egress == TemplateEgress.LIST:
        try:
            policy_of(template.egress, template.egress_allow)
        except InvalidSpec:
            problems["egress_allow"] = [Reason(CatalogCode.EGRESS_INVALID)]
    for field, reason in problems_of(template.git_url, template.git_ref, template.git_secret).items():
        problems[f"git_{field}"] = [reason]
    for reason in problems_of(template.dotfiles_url).values():
        problems["dotfiles_url"] = [reason]
    if not _are_mounts(template.mounts):
        problems["mounts"] = [Reason(CatalogCode.MOUNTS_INVALID, {"most": mounts.MAX_FOLDERS})]
    _argv(template.argv, problems)
    _env(template.env, problems)
    if not storable(template.startup) or "\0" in template.startup:
        problems["startup"] = [Reason(CatalogCode.SIGN_NOT_ALLOWED, {"field": "startup"})]
    if not problems.keys() & {"argv", "env", "startup"}:
        _check_consistency(template, problems)
    return problems


def _are_mounts(value: Any) -> bool:
    """Return whether the value is a list of unique folder names as nodes list them."""
    if not isinstance(value, list) or len(value) > mounts.MAX_FOLDERS:
        return False
    if not all(isinstance(entry, str) and mounts.WORD.fullmatch(entry) for entry in value):
        return False
    return len({mounts.path_inside(entry) for entry in value}) == len(value)


def _argv(argv: Any, problems: Problems) -> None:
    """Check that the arguments are texts and begin with the program."""
    invalid = Reason(CatalogCode.ARGV_INVALID, {"most": MAX_ARGUMENTS})
    if (
        not isinstance(argv, list)
        or not 1 <= len(argv) <= MAX_ARGUMENTS
        or not all(isinstance(argument, str) for argument in argv)
        or not argv[0].strip()
        or "{" in argv[0]
    ):
        problems["argv"] = [invalid]
    elif any(len(argument) > MAX_ARGUMENT for argument in argv):
        problems["argv"] = [Reason(CatalogCode.TOO_LARGE, {"field": "argv", "most": MAX_ARGUMENT})]
    elif not all(storable(argument) for argument in argv):
        problems["argv"] = [Reason(CatalogCode.SIGN_NOT_ALLOWED, {"field": "argv"})]


def _env(env: Any, all_problems: Problems) -> None:
    """Check that names are valid for programs and not reserved."""
    if (
        not isinstance(env, Mapping)
        or len(env) > MAX_VARIABLES
        or not all(isinstance(value, str) for value in env.values())
    ):
        all_problems["env"] = [Reason(CatalogCode.ENV_INVALID, {"most": MAX_VARIABLES})]
        return
    problems = []
    for name, value in env.items():
        if not _ENV_NAME.match(name):
            problems.append(Reason(CatalogCode.ENV_NAME_INVALID, {"name": name[:100]}))
        elif name.upper().startswith(RESERVED_PREFIXES) or name.upper() in RESERVED_NAMES:
            problems.append(Reason(CatalogCode.ENV_NAME_RESERVED, {"name": name}))
        elif len(value) > MAX_VALUE:
            problems.append(Reason(CatalogCode.TOO_LARGE, {"field": name, "most": MAX_VALUE}))
        elif not storable(value):
            problems.append(Reason(CatalogCode.SIGN_NOT_ALLOWED, {"field": name}))
    if problems:
        all_problems["env"] = problems


def _check_consistency(template: Template, problems: Problems) -> None:
    """Check placeholders, and reject texts that certainly contain secrets."""
    for field, _where, text in _parts(template):
        # Scripts and code may contain other braces.
        if field == "env" or (field == "argv" and not re.search(r"[\n;()]", text)):
            for name in _PLACEHOLDER.findall(text):
                if name not in PLACEHOLDERS:
                    params = {"name": name, "known": [f"{{{placeholder}}}" for placeholder in PLACEHOLDERS]}
                    problems.setdefault(field, []).append(Reason(CatalogCode.PLACEHOLDER_UNKNOWN, params))
    for field, where, text in _parts(template):
        if _SECRET.search(text):
            problems.setdefault(field, []).append(Reason(CatalogCode.SECRET_FOUND, {"where": where}))
    if not any("{port}" in text for _field, _where, text in _parts(template)):
        problems.setdefault("argv", []).append(Reason(CatalogCode.PORT_MISSING))


def _parts(template: Template) -> Iterator[tuple[str, str, str]]:
    """Yield each text that the agent receives: its field, its location for display, and the text."""
    for number, argument in enumerate(template.argv, 1):
        yield "argv", f"argv {number}", argument
    for name, value in template.env.items():
        yield "env", name, value
    if template.startup:
        yield "startup", "startup", template.startup


def template_warnings(template: Template) -> list[Finding]:
    """Return warnings about a valid template."""
    findings = []
    for field, where, text in _parts(template):
        likely = _has_secret_option(text) or _URL_PASSWORD.search(text) is not None
        if field == "env" and text and "{" not in text:
            likely = likely or is_secret_name(where)
        if likely:
            findings.append(Finding(field, Reason(CatalogCode.SECRET_LIKELY, {"where": where})))
    if any("{token}" in argument for argument in template.argv):
        findings.append(Finding("argv", Reason(CatalogCode.TOKEN_IN_ARGV)))
    if not any("{token}" in text or "{token_file}" in text for _field, _where, text in _parts(template)):
        findings.append(Finding("argv", Reason(CatalogCode.TOKEN_UNUSED)))
    if template.environment is not None:
        lacking = environment_problem(template, template.environment)
        findings += [Finding("environment", lacking)] if lacking is not None else []
    return findings


def _has_secret_option(text: str) -> bool:
    """Return whether an option such as `--api-key=VALUE` probably holds a secret."""
    return any(_SECRET_WORD.search(option[1].partition("-")[2]) for option in _OPTION.finditer(text))


def lacks_program(template: Template, programs: Collection[str]) -> bool:
    """Return whether the environment lacks the template's program and has to provide it.

    Other programs, such as editors, are installed on nodes and find the environment's Python by its path.
    """
    if template.program in programs:
        return False
    command = template.argv[0] if template.argv else ""
    return template.program in NOTEBOOK_PROGRAMS or command in programs


def environment_problem(
    template: Template, environment: Environment, coming: environments.PendingVersion | None = None
) -> Reason | None:
    """Return why the template's workspaces cannot run in an environment now, or None.

    `coming` is its pending version, if already read.
    """
    if not environment.enabled:
        return Reason(EnvironmentCode.SWITCHED_OFF, {"environment": environment.name})
    if environment.kind == Kind.NODE:
        return None
    version = environment.current
    if version is None:
        upcoming = coming or environments.pending_version(environment)
        if upcoming.version is not None and environment_policies.built_when_asked(environment):
            if lacks_program(template, environments.expected_programs(upcoming.version)):
                return _missing_program(template, environment)
            return environments.not_installed(environment, upcoming.version)
        waits = {"environment": environment.name, "state": upcoming.progress.state}
        return Reason(EnvironmentCode.NOT_READY, {**waits, "percent": upcoming.progress.percent})
    return _missing_program(template, environment) if lacks_program(template, version.programs) else None


def _missing_program(template: Template, environment: Environment) -> Reason:
    lacking = {"environment": environment.name, "program": template.program, "template": template.name}
    return Reason(EnvironmentCode.LACKS_PROGRAM, lacking)


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name probably holds a secret."""
    return bool(_SECRET_NAME.search(name))


def flavor_problems(flavor: Flavor) -> Problems:
    """Return the problems that prevent saving a flavor."""
    problems: Problems = {}
    _texts(flavor, ("name", "description", "accelerator_model"), problems)
    models = flavor.accelerator_models
    if (
        not isinstance(models, list)
        or len(models) > MAX_ACCELERATORS
        or not all(
            isinstance(model, str)
            and 0 < len(model) <= 80
            and _is_displayable(model)
            and model.strip() == model
            for model in models
        )
        or len({*map(str, models)}) != len(models)
    ):
        problems["accelerator_models"] = [Reason(CatalogCode.MODELS_INVALID, {"most": MAX_ACCELERATORS})]
        return problems
    if flavor.accelerator_model and models:
        problems["accelerator_models"] = [Reason(CatalogCode.MODEL_OR_MODELS)]
    share = flavor.accelerator_milli != WHOLE_DEVICE_MILLI
    narrowed = flavor.accelerator_model or models or flavor.accelerator_memory_mib
    if not flavor.accelerator_count and (share or narrowed or flavor.mig_profile):
        problems["accelerator_count"] = [Reason(CatalogCode.ACCELERATOR_NEEDED)]
    if flavor.mig_profile and (share or narrowed):
        problems["mig_profile"] = [Reason(CatalogCode.MIG_TAKES_WHOLE_INSTANCES)]
    if share and flavor.nodes > 1:
        problems["nodes"] = [Reason(CatalogCode.SHARE_OF_SEVERAL_NODES)]
    return problems


def _texts(entry: Template | Flavor, fields: tuple[str, ...], problems: Problems) -> None:
    for field in fields:
        if not _is_displayable(getattr(entry, field)):
            problems[field] = [Reason(CatalogCode.SIGN_NOT_ALLOWED, {"field": field})]


def _is_displayable(text: str) -> bool:
    """Return whether the text has no control characters or changes of direction."""
    return storable(text) and not any(
        sign in _BIDI or unicodedata.category(sign) in ("Cc", "Cs") for sign in text
    )
