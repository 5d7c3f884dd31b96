"""SCIM settings of the providers file, and the periodic task that applies changed rules."""

from __future__ import annotations

import pytest

from portal.embedded.clock import SCHEDULE
from portal.people.identity import config, registry
from portal.people.identity.config import ConfigError
from portal.people.scim import tasks
from portal.people.scim.models import AppliedRules
from tests.fixtures import PROVIDER


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[scim]\nprovider = "nobody"\n', "sign-in provider “nobody” not found"),
        ("[scim]\nadopts = true\n", "unknown field"),
        ('[scim]\nadopt = "yes"\n', "bool"),
        ('[scim]\n[[scim.rules]]\ngroup = "a"\n', "either team or site_role"),
        ('[scim]\n[[scim.rules]]\ngroup = "a"\nteam = "b"\nrole = "boss"\n', "role must be one of"),
        ('[scim]\n[[scim.rules]]\ngroup_pattern = "("\nteam = "b"\n', "not a valid regular expression"),
        ('[scim]\n[[scim.rules]]\nclaim = "a"\nequals = "b"\nteam = "c"\n', "no claims"),
    ],
)
def test_invalid_setting_is_reported_at_startup(tmp_path, text, said):
    path = tmp_path / "providers.toml"
    path.write_text(PROVIDER + text)
    with pytest.raises(ConfigError) as refused:
        config.load(str(path), {})
    assert said in " ".join(refused.value.problems)


def test_scim_grants_and_adopts_no_accounts_by_default(configure):
    configure(PROVIDER)
    assert registry.scim() == config.Scim()
    assert registry.scim().adopt is registry.scim().delete_accounts is False


@pytest.mark.django_db
def test_periodic_task_records_applied_rules(configure):
    assert SCHEDULE["apply-scim-rules"]["task"] == tasks.apply_scim_rules.name
    configure('[scim]\n[[scim.rules]]\ngroup = "a"\nteam = "b"\n')
    tasks.apply_scim_rules()
    first = AppliedRules.objects.get().digest
    tasks.apply_scim_rules()
    assert AppliedRules.objects.get().digest == first
    configure("")
    tasks.apply_scim_rules()
    assert AppliedRules.objects.get().digest != first
