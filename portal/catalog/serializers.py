"""Serializers of templates, flavors and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.catalog import rules, selectors
from portal.catalog.models import (
    COMPUTE_CAPABILITIES,
    LARGEST,
    MAX_ACCELERATORS,
    MAX_EXPECTED_HOURS,
    MAX_LIFETIME_H,
    MAX_NODES,
    MAX_PRICE_CENTS,
    MAX_TIMEOUT_S,
    MIN_EXPECTED_HOURS,
    Activity,
    Bond,
    Flavor,
    Template,
    TemplateEgress,
    UpstreamAuth,
    WorkLost,
)
from portal.common.api import StrictSerializer
from portal.common.errors import InvalidInput
from portal.common.problem_serializers import ReasonSerializer
from portal.common.reasons.wording import message_of
from provisioning import mounts as folders
from provisioning.git_urls import MAX_REF, MAX_URL
from provisioning.types import WHOLE_DEVICE_MILLI

MOUNTS_HELP = (
    "Folders of the node, by name, that workspaces see as `/data/NAME`. `NAME:rw` makes a folder writable."
)


class AcceleratorsSerializer(serializers.Serializer[Any]):
    """Accelerators per node. `share_milli` is 1000 for whole accelerators."""

    count = serializers.IntegerField(help_text="Number of accelerators on each node; 0 for none.")
    model = serializers.CharField(allow_blank=True)
    share_milli = serializers.IntegerField(
        help_text="Share of each accelerator, in thousandths. 1000 is a whole one."
    )
    isolated = serializers.BooleanField(
        default=True,
        help_text=(
            "Whether the accelerator is isolated from other workspaces. False for a share of a device: "
            "each workspace on it can use all of its memory and compute time, and an error in one can stop "
            "the others."
        ),
    )
    memory_mib = serializers.IntegerField()
    models = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Accepted models, if there are several. `model` is then empty.",
    )
    mig_profile = serializers.CharField(
        default="", allow_blank=True, help_text="MIG profile, such as `1g.10gb`."
    )
    within = serializers.ChoiceField(
        Bond.choices,
        default=Bond.NODE,
        help_text="Fast connection that several accelerators must share.",
    )


class ResourcesSerializer(serializers.Serializer[Any]):
    """Resources on each node, in integers of the named units."""

    cpu_milli = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    disk_mib = serializers.IntegerField(help_text="Disk space in MiB.")
    nodes = serializers.IntegerField(help_text="Number of nodes.")
    accelerators = AcceleratorsSerializer(help_text="Accelerators on each node.")

    def to_representation(self, instance: Mapping[str, Any]) -> dict[str, Any]:
        accelerators = instance["accelerators"]
        return {
            "cpu_milli": instance["cpu_milli"],
            "memory_mib": instance["memory_mib"],
            "disk_mib": instance["disk_mib"],
            "nodes": instance["nodes"],
            "accelerators": {
                "count": accelerators["count"],
                "model": accelerators["model"],
                "share_milli": accelerators["share_milli"],
                "isolated": accelerators["share_milli"] >= WHOLE_DEVICE_MILLI,
                "memory_mib": accelerators["memory_mib"],
                "models": list(accelerators.get("models", ())),
                # Stored only if they differ from the defaults.
                "mig_profile": accelerators.get("mig_profile", ""),
                "within": accelerators.get("within", Bond.NODE.value),
            },
        }


def _hours(help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(allow_null=True, read_only=True, help_text=help_text)


EXPECTED_WORDS = "Default expected run time in hours."
LIFETIMES = ("default_lifetime_hours", "max_lifetime_hours")


class EntrySerializer(serializers.ModelSerializer[Any]):
    """Common fields of templates and flavors."""

    successor = serializers.CharField(
        source="successor.slug",
        allow_null=True,
        default=None,
        help_text="Slug of the replacement; null for none.",
    )
    teams = serializers.SerializerMethodField(
        help_text=(
            "Slugs of the teams that can use it; null for everyone. Only operators and auditors see "
            "other teams."
        )
    )
    deprecated = serializers.BooleanField(
        help_text="Whether it is deprecated. Deprecated ones can still be used."
    )
    default_lifetime_hours = _hours("Hours after which such a workspace stops by default; 0 means no limit.")
    max_lifetime_hours = _hours("Maximum lifetime in hours, extensions included; 0 means no limit.")

    @extend_schema_field(serializers.ListField(child=serializers.CharField(), allow_null=True))
    def get_teams(self, entry: Template | Flavor) -> list[str] | None:
        if not entry.restricted:
            return None
        own = self.context.get("own_teams")
        return sorted(team.slug for team in entry.teams.all() if own is None or team.pk in own)


COMMAND = ("argv", "env", "startup")


class TemplateSerializer(EntrySerializer):
    """A template. `available` is false if no node has its program; `reason` says so."""

    min_compute_capability = serializers.CharField(
        read_only=True, help_text="Minimum CUDA compute capability, such as `8.0`; empty for any."
    )
    team = serializers.CharField(
        source="team.slug",
        allow_null=True,
        default=None,
        help_text="Slug of the team that owns it; null for a template of the site.",
    )
    environment = serializers.CharField(
        source="environment.slug",
        allow_null=True,
        default=None,
        help_text="Slug of the software environment; null for the software of the node.",
    )
    mounts = serializers.ListField(child=serializers.CharField(), help_text=MOUNTS_HELP)
    argv = serializers.SerializerMethodField(
        help_text="Start command of the template; null if you cannot edit it."
    )
    env = serializers.SerializerMethodField(
        help_text="Environment variables of the program; null if you cannot edit it."
    )
    startup = serializers.SerializerMethodField(
        help_text="Shell script that runs before the program; null if you cannot edit it."
    )
    available = serializers.SerializerMethodField(help_text="Whether at least one node has its program.")
    reason = serializers.SerializerMethodField(help_text="Why no node can run it; empty if one can.")
    next_action = serializers.SerializerMethodField()

    class Meta:
        model = Template
        fields = [
            *("slug", "name", "description", "icon", "program", "min_cuda", "min_compute_capability"),
            *(
                "open_path",
                "start_timeout_s",
                "stop_timeout_s",
                "work_lost",
                "service_workers",
                "available",
                "reason",
                "next_action",
            ),
            *("egress", "egress_allow", "git_url", "git_ref", "git_secret", "dotfiles_url", "mounts"),
            *("team", "teams", "argv", "env", "startup", "install_hint", "ready_path", "upstream_auth"),
            *("activity", "enabled", "position", "deprecated", "successor", "updated_at", "environment"),
            *LIFETIMES,
        ]
        read_only_fields = fields

    def to_representation(self, template: Template) -> dict[str, Any]:
        data = super().to_representation(template)
        if template.pk not in self.context["kept"]:
            data |= dict.fromkeys(COMMAND)
        return data

    @extend_schema_field(serializers.ListField(child=serializers.CharField(), allow_null=True))
    def get_argv(self, template: Template) -> list[str]:
        return list(template.argv)

    @extend_schema_field(serializers.DictField(child=serializers.CharField(), allow_null=True))
    def get_env(self, template: Template) -> dict[str, str]:
        return dict(template.env)

    @extend_schema_field(serializers.CharField(allow_null=True, allow_blank=True))
    def get_startup(self, template: Template) -> str:
        return template.startup

    def get_available(self, template: Template) -> bool:
        return not self._offer(template).reason

    def get_reason(self, template: Template) -> str:
        return self._offer(template).reason

    def get_next_action(self, template: Template) -> str:
        return self._offer(template).next_action

    def _offer(self, template: Template) -> selectors.TemplateOffer:
        # Read the programs once for all rows of a response.
        context: dict[str, Any] = self.context  # type: ignore[assignment]
        if "programs" not in context:
            context["programs"] = selectors.node_programs().installed
        blocker = selectors.missing_program(template, context["programs"])
        return selectors.TemplateOffer(template, blocker)


class FlavorSerializer(EntrySerializer):
    """A flavor: the size of a workspace. With `pool` it is available only there."""

    resources = serializers.SerializerMethodField(help_text="Resources on each node.")
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    simulated = serializers.BooleanField(help_text="Whether it is simulated.")
    work_lost = serializers.ChoiceField(
        WorkLost.choices,
        allow_blank=True,
        help_text="When a preemption loses work; empty uses the value of the template.",
    )
    expected_hours = serializers.FloatField(read_only=True, help_text=EXPECTED_WORDS)

    class Meta:
        model = Flavor
        fields = [
            *("slug", "name", "description", "resources", "pool", "simulated", "work_lost", "teams"),
            *("preemptible", "expected_hours", *LIFETIMES, "price_cents"),
            *("enabled", "position", "deprecated", "successor", "updated_at"),
        ]
        read_only_fields = fields

    @extend_schema_field(ResourcesSerializer)
    def get_resources(self, flavor: Flavor) -> dict[str, Any]:
        return ResourcesSerializer(flavor.as_request()).data


class WarningSerializer(serializers.Serializer[rules.Finding]):
    """A warning about a field. It does not prevent saving."""

    field = serializers.CharField(help_text="Name of the field.")
    message = serializers.SerializerMethodField()
    reason = serializers.SerializerMethodField(help_text="What to check, as a code and in words.")

    def get_message(self, finding: rules.Finding) -> str:
        return message_of(finding.reason)

    @extend_schema_field(ReasonSerializer)
    def get_reason(self, finding: rules.Finding) -> dict[str, Any]:
        return finding.reason.as_json()


class TemplateWrittenSerializer(TemplateSerializer):
    """A template after a write, with warnings."""

    warnings = serializers.SerializerMethodField(help_text="Warnings that do not block its use.")

    class Meta(TemplateSerializer.Meta):
        fields = [*TemplateSerializer.Meta.fields, "warnings"]
        read_only_fields = fields

    @extend_schema_field(WarningSerializer(many=True))
    def get_warnings(self, template: Template) -> list[dict[str, Any]]:
        return [WarningSerializer(warning).data for warning in rules.template_warnings(template)]


def _slugs(**options: Any) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(max_length=40), max_length=500, allow_null=True, required=False, **options
    )


def _integer_field(minimum: int = 0, maximum: int = LARGEST, **options: Any) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=minimum, max_value=maximum, **{"required": False, **options})


def _lifetime(help_text: str, **options: Any) -> serializers.IntegerField:
    return _integer_field(0, MAX_LIFETIME_H, allow_null=True, help_text=help_text, **options)


class EntryChangeSerializer(StrictSerializer):
    """Common writable fields of templates and flavors."""

    name = serializers.CharField(max_length=80)
    description = serializers.CharField(max_length=200, allow_blank=True, required=False)
    enabled = serializers.BooleanField(required=False)
    position = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST,
        required=False,
        help_text="Position in lists, lowest first.",
    )
    deprecated = serializers.BooleanField(
        required=False, help_text="Whether new workspaces should use another one."
    )
    teams = _slugs(help_text="Slugs of the teams that can use it; null for everyone.")
    default_lifetime_hours = _lifetime(
        "Default lifetime of a workspace in hours; 0 for no limit. The shorter of template and flavor "
        "applies. Default: site setting."
    )
    max_lifetime_hours = _lifetime(
        "Maximum lifetime in hours, extensions included; 0 for no limit. The shorter of template and "
        "flavor applies. Default: site setting."
    )

    examples = {"default_lifetime_hours": 8, "max_lifetime_hours": 72}


class TemplateChangeSerializer(EntryChangeSerializer):
    """Writable fields of a template."""

    icon = serializers.ChoiceField(
        [(name, name) for name in rules.ICONS],
        allow_blank=True,
        required=False,
        help_text="Name of an icon.",
    )
    program = serializers.CharField(
        max_length=80, help_text="Program that a node must have, as reported by its inventory."
    )
    install_hint = serializers.CharField(
        max_length=200,
        allow_blank=True,
        required=False,
        help_text="Instructions for operators if the program is missing.",
    )
    min_cuda = serializers.CharField(
        max_length=6,
        allow_blank=True,
        required=False,
        help_text="Minimum CUDA version, such as `12.4`; empty for any.",
    )
    min_compute_capability = serializers.ChoiceField(
        [(capability, capability) for capability in COMPUTE_CAPABILITIES],
        allow_blank=True,
        required=False,
        help_text="Minimum CUDA compute capability, such as `8.0`; empty for any.",
    )
    argv = serializers.ListField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True, max_length=rules.MAX_ARGUMENT),
        max_length=rules.MAX_ARGUMENTS,
        help_text="The program and its arguments; `{port}`, `{home}`, `{token}`, `{token_file}` and `{name}` "
        "are replaced.",
    )
    env = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True, max_length=rules.MAX_VALUE),
        required=False,
        help_text="Environment variables of its program.",
    )
    startup = serializers.CharField(
        max_length=8000,
        trim_whitespace=False,
        allow_blank=True,
        required=False,
        help_text="Shell script that runs before the program, in its sandbox.",
    )
    ready_path = serializers.CharField(
        max_length=200, required=False, help_text="Path that responds once the program is ready."
    )
    open_path = serializers.CharField(
        max_length=200, required=False, help_text="Path that opens in the browser."
    )
    upstream_auth = serializers.ChoiceField(
        UpstreamAuth.choices,
        required=False,
        help_text="Credentials that the front door adds to requests to the program.",
    )
    service_workers = serializers.BooleanField(
        required=False, help_text="Whether the app can install service workers. Not for templates of teams."
    )
    egress = serializers.ChoiceField(
        [choice for choice in TemplateEgress.choices if choice[0]],
        allow_blank=True,
        required=False,
        help_text="Maximum network access of workspaces; empty for the policy of the pool.",
    )
    egress_allow = serializers.CharField(
        max_length=4000,
        allow_blank=True,
        required=False,
        help_text="With `list`: allowed hosts, such as `*.example.org`, and networks, separated by commas.",
    )
    git_url = serializers.CharField(
        max_length=MAX_URL,
        allow_blank=True,
        required=False,
        help_text="Git repository that workspaces clone at start, unless they set another.",
    )
    git_ref = serializers.CharField(
        max_length=MAX_REF,
        allow_blank=True,
        required=False,
        help_text="Branch, tag or commit of the repository; empty for the default branch.",
    )
    git_secret = serializers.CharField(
        max_length=64,
        allow_blank=True,
        required=False,
        help_text="Name of the secret of the template or team with the credentials.",
    )
    mounts = serializers.ListField(
        child=serializers.RegexField(folders.WORD.pattern + r"\Z", max_length=43),
        max_length=folders.MAX_FOLDERS,
        required=False,
        help_text=MOUNTS_HELP + " Not for templates of teams.",
    )
    dotfiles_url = serializers.CharField(
        max_length=MAX_URL,
        allow_blank=True,
        required=False,
        help_text="Dotfiles for users without their own.",
    )
    activity = serializers.ChoiceField(
        [choice for choice in Activity.choices if choice[0]],
        allow_blank=True,
        required=False,
        help_text="Method to detect activity.",
    )
    start_timeout_s = serializers.IntegerField(
        min_value=5,
        max_value=MAX_TIMEOUT_S,
        required=False,
        help_text="Maximum duration of a start, in seconds.",
    )
    stop_timeout_s = serializers.IntegerField(
        min_value=0,
        max_value=300,
        required=False,
        help_text="Grace period for the program to stop, in seconds.",
    )
    work_lost = serializers.ChoiceField(
        WorkLost.choices,
        required=False,
        help_text="Whether preemption loses work.",
    )
    successor = serializers.CharField(
        max_length=81,
        allow_null=True,
        required=False,
        help_text="Slug of the replacement; null for none.",
    )
    environment = serializers.CharField(
        max_length=40,
        allow_null=True,
        required=False,
        help_text="Slug of the software environment of its workspaces.",
    )

    examples = {
        "argv": ["python3", "-m", "http.server", "{port}"],
        "env": {"HF_HOME": "/home/me/.cache/huggingface"},
        "ready_path": "/api",
        "open_path": "/lab",
        "egress_allow": "pypi.org\nfiles.pythonhosted.org",
        "git_url": "https://git.example.org/vision/notebooks.git",
        "git_ref": "main",
        "mounts": ["datasets"],
    }


class TemplateCreateSerializer(TemplateChangeSerializer):
    """A template to create."""

    slug = serializers.CharField(max_length=81)
    team = serializers.CharField(
        max_length=40,
        allow_null=True,
        required=False,
        help_text="Slug of the team that will own it; null for a template of the site.",
    )


class FlavorAcceleratorsSerializer(StrictSerializer):
    """Accelerators on each node, in a flavor to write."""

    count = _integer_field(
        0,
        MAX_ACCELERATORS,
        source="accelerator_count",
        help_text="Number of accelerators on each node; 0 for none.",
    )
    model = serializers.CharField(source="accelerator_model", max_length=80, allow_blank=True, required=False)
    models = serializers.ListField(
        source="accelerator_models",
        child=serializers.CharField(max_length=80),
        max_length=MAX_ACCELERATORS,
        required=False,
        help_text="Accepted models, if there are several. Then leave `model` empty.",
    )
    share_milli = _integer_field(
        1,
        WHOLE_DEVICE_MILLI,
        source="accelerator_milli",
        help_text="Share of each accelerator, in thousandths. 1000 is a whole one.",
    )
    memory_mib = _integer_field(source="accelerator_memory_mib")
    mig_profile = serializers.CharField(
        max_length=40,
        allow_blank=True,
        required=False,
        help_text="MIG profile, such as `1g.10gb`.",
    )
    within = serializers.ChoiceField(
        Bond.choices,
        required=False,
        help_text="Fast connection that several accelerators must share.",
    )

    examples = {"memory_mib": 16_384, "mig_profile": "1g.10gb"}


class FlavorResourcesChangeSerializer(StrictSerializer):
    """Resources on each node in a change of a flavor. Omitted fields stay unchanged."""

    cpu_milli = _integer_field(100)
    memory_mib = _integer_field(128)
    disk_mib = _integer_field(help_text="Disk space in MiB.")
    nodes = _integer_field(1, MAX_NODES, help_text="Number of nodes.")
    accelerators = FlavorAcceleratorsSerializer(
        source="*", required=False, help_text="Accelerators on each node."
    )

    examples = {"memory_mib": 16_384, "cpu_milli": 4000, "disk_mib": 102_400}


class FlavorResourcesSerializer(FlavorResourcesChangeSerializer):
    """Resources on each node in a new flavor."""

    cpu_milli = _integer_field(100, required=True)
    memory_mib = _integer_field(128, required=True)


def _paths(serializer: serializers.Serializer[Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in serializer.fields.items():
        if isinstance(field, serializers.Serializer):
            yield from _paths(field, f"{prefix}{name}.")
        else:
            yield str(field.source), prefix + name


@contextmanager
def flavor_errors(prefix: str = "") -> Iterator[None]:
    """Map a flavor's columns in errors to paths in the request body, below `prefix`."""
    try:
        yield
    except InvalidInput as error:
        paths = dict(_paths(FlavorResourcesSerializer(), "resources."))
        errors = error.extra.get("errors", {})
        error.extra["errors"] = {
            prefix + paths[column] if column in paths else column: reasons
            for column, reasons in errors.items()
        }
        raise


class FlavorChangeSerializer(EntryChangeSerializer):
    """Writable fields of a flavor."""

    resources = FlavorResourcesChangeSerializer(source="*", help_text="Resources on each node.")
    preemptible = serializers.BooleanField(
        required=False, help_text="Whether workspaces of this flavor can be preempted."
    )
    work_lost = serializers.ChoiceField(
        WorkLost.choices,
        allow_blank=True,
        required=False,
        help_text="Whether preemption loses work.",
    )
    expected_hours = serializers.FloatField(
        min_value=MIN_EXPECTED_HOURS,
        max_value=MAX_EXPECTED_HOURS,
        required=False,
        help_text=EXPECTED_WORDS,
    )
    price_cents = _integer_field(
        0,
        MAX_PRICE_CENTS,
        allow_null=True,
        help_text="Price per hour with its accelerators, in hundredths of the currency; null: no price.",
    )
    pool = serializers.CharField(max_length=40, allow_null=True, required=False)
    successor = serializers.CharField(
        max_length=60,
        allow_null=True,
        required=False,
        help_text="Slug of the replacement; null for none.",
    )


class FlavorCreateSerializer(FlavorChangeSerializer):
    """A flavor to create."""

    slug = serializers.CharField(max_length=60)
    resources = FlavorResourcesSerializer(source="*", help_text="Resources on each node.")


def ids_with_visible_command(actor: Any, templates: Iterable[Template]) -> frozenset[Any]:
    """Return the ids of those templates in `templates` whose command the actor may read."""
    if actor.sees_all:
        return frozenset(template.pk for template in templates)
    owned = set(actor.memberships.filter(role="owner").values_list("team_id", flat=True))
    return frozenset(template.pk for template in templates if template.team_id in owned)
