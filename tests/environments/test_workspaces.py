"""Workspaces in environments: choice, refusal, placement, waiting and start."""

from __future__ import annotations

import pytest

from portal.catalog.environments import services as environments
from portal.catalog.environments import upkeep
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, reason_of
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import Role
from portal.scheduling import admission, capacity, cycle
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.verdicts import Outcome
from portal.workspaces import software
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.types import HeldEnvironment
from tests.environments.helpers import LOCK, built, commands, environment, failed, only, progress, ready
from tests.environments.test_builds import DIGEST, second_node
from tests.factories import (
    MembershipFactory,
    TeamFactory,
    create_workspace,
    inventory_of,
    local_pool_with,
    node_info,
)

pytestmark = pytest.mark.django_db


def jupyter() -> Template:
    return Template.objects.select_related("environment__current").get(slug="jupyterlab")


def small() -> Flavor:
    return Flavor.objects.get(slug="cpu-small")


def create(actor, team, environment=None, template=None, **fields) -> Workspace:
    return create_workspace(
        actor=actor,
        team=team,
        template=template or jupyter(),
        flavor=small(),
        environment=environment,
        **fields,
    )


def only_start(sent):
    (message,) = sent.take("node.execute")
    return message.command


def test_workspace_starts_with_the_chosen_environment(team, bob, local_pool, sent):
    made = ready(sent)
    workspace = create(bob, team, made)
    assert workspace.environment_version == made.current
    assert workspace.resources["needs"] == [f"environment:{DIGEST}"]
    assert only_start(sent).spec.environment == DIGEST


def test_workspace_without_environment_uses_the_software_of_the_node(team, bob, local_pool, sent):
    workspace = create(bob, team)
    assert (workspace.environment_version, "needs" in workspace.resources) == (None, False)
    assert only_start(sent).spec.environment == ""


def test_ready_environment_of_the_template_is_the_default(team, bob, local_pool, sent):
    made = environment()
    Template.objects.filter(slug="jupyterlab").update(environment=made)
    assert create(bob, team).environment_version is None
    built(next(command for command in commands(sent) if command.build))
    workspace = create(bob, team)
    assert workspace.environment_version.environment == made
    minimal = Environment.objects.create(
        slug="minimal", name="Minimal", kind="node", updated_at=made.updated_at
    )
    assert create(bob, team, minimal).environment_version is None


def test_workspace_keeps_its_version_when_another_becomes_current(team, bob, local_pool, sent):
    made = ready(sent)
    workspace = create(bob, team, made)
    environments.rebuild(actor=SYSTEM, environment=made)
    assert built(only(sent), lock=LOCK.replace("2.1.0", "2.2.0"))
    workspace.refresh_from_db()
    assert workspace.environment_version.number == 1
    assert f"environment:{DIGEST}" in workspace.request.needs


def test_unavailable_choice_is_refused_with_the_reason(team, bob, local_pool, sent):
    made = environment(name="Data science")
    command = only(sent)
    progress(command, "downloading", done=6, total=10)
    with pytest.raises(StateConflict) as waits:
        create(bob, team, made)
    assert waits.value.code == "environment_not_ready"
    assert waits.value.message == "“Data science” is being built: 40 %."
    failed(command, "resolution_failed")
    with pytest.raises(StateConflict) as refused:
        create(bob, team, made)
    assert refused.value.message == "“Data science” could not be built."
    environments.change(actor=SYSTEM, environment=made, enabled=False)
    made.refresh_from_db()
    with pytest.raises(InvalidInput) as off:
        create(bob, team, made)
    assert off.value.reason.code is EnvironmentCode.SWITCHED_OFF
    assert not Workspace.objects.exists()


def test_environment_of_another_team_is_hidden_and_refused(team, alice, bob, charlie, local_pool, sent):
    made = ready(sent, team=team, actor=alice)
    other = TeamFactory(slug="audio")
    MembershipFactory(team=other, user=charlie, role=Role.OWNER)
    with pytest.raises(InvalidInput):
        software.find_environment(charlie, made.slug)
    MembershipFactory(team=other, user=bob)
    with pytest.raises(NotAllowed) as refused:
        create(bob, other, made)
    assert refused.value.reason.code is WorkspaceCode.ENVIRONMENT_NOT_FOR_TEAM
    assert create(bob, team, made).environment_version == made.current


def test_missing_program_is_refused_unless_the_node_provides_it(team, bob, local_pool, sent):
    made = environment()
    built(only(sent), programs=("python3",))
    made.refresh_from_db()
    with pytest.raises(InvalidInput) as refused:
        create(bob, team, made)
    assert "has no jupyter-lab" in refused.value.message
    editor = Template.objects.get(slug="vscode")
    assert create(bob, team, made, template=editor).environment_version == made.current


def test_environment_provides_a_program_missing_on_the_node(team, bob, catalog, sent):
    held = HeldEnvironment(DIGEST, 300, ("jupyter-lab",))
    local_pool_with(node_info(programs=("bash",)))
    made = ready(sent)
    assert held.digest == made.current.digest
    assert admission.assess(template=jupyter(), flavor=small()).outcome is Outcome.IMPOSSIBLE
    said = admission.assess(template=jupyter(), flavor=small(), environment=DIGEST)
    assert said.outcome is Outcome.FITS_NOW
    assert create(bob, team, made).state == State.PROVISIONING


def test_workspace_is_placed_on_a_node_with_the_environment(team, bob, local_pool, sent):
    made = ready(sent)
    second_node(local_pool)
    Node.objects.filter(name="node-1").update(cordoned=True)
    workspace = create(bob, team, made)
    assert workspace.state == State.PENDING
    others = capacity.load()[local_pool.pk]
    reasons = dict(others.reasons(workspace.request))
    assert reasons["node-2"].code is PlacementCode.ENVIRONMENT_MISSING


def test_start_waits_until_a_node_has_the_environment(team, bob, local_pool, sent, run_node):
    made = ready(sent, name="Data science")
    # The node no longer has it.
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(node_info()))
    upkeep.sweep()
    command = only(sent)
    progress(command, "downloading", done=6, total=10)
    said = admission.assess(
        template=jupyter(), flavor=small(), team=team, actor=bob, environment=made.current.digest
    )
    assert said.outcome is Outcome.QUEUED
    assert said.message == "“Data science” is being built: 40 %."
    workspace = create(bob, team, made)
    assert (workspace.state, workspace.pool) == (State.PENDING, None)
    assert message_of(reason_of(workspace.queue_entry.reason)) == said.message
    assert built(command)
    cycle.run()
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    assert only_start(sent).spec.environment == DIGEST


def test_pending_environment_does_not_block_other_starts(team, bob, local_pool, sent):
    made = ready(sent)
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(node_info()))
    assert create(bob, team, made).state == State.PENDING
    assert create(bob, team).state == State.PROVISIONING


def test_simulated_pools_accept_any_environment(team, bob, pool, local_pool, sent):
    made = ready(sent)
    flavor = Flavor.objects.get(slug="sim-cpu")
    workspace = create_workspace(actor=bob, team=team, template=jupyter(), flavor=flavor, environment=made)
    assert workspace.state == State.PROVISIONING


def test_cuda_version_of_the_environment_limits_placement(team, bob, catalog, sent):
    local_pool_with(node_info(gpus=1, driver_version="550.54", cuda_version="12.4"))
    flavor = Flavor.objects.get(accelerator_count=1)
    newer = environment(name="Torch")
    built(only(sent), cuda="13.0", lock=LOCK.replace("numpy", "torch"))
    newer.refresh_from_db()
    said = admission.assess(template=jupyter(), flavor=flavor, environment=newer.current.digest)
    assert said.outcome is Outcome.IMPOSSIBLE
    assert "13.0" in said.message
    without = admission.assess(template=jupyter(), flavor=small(), environment=newer.current.digest)
    assert without.outcome is Outcome.FITS_NOW


def test_driver_of_the_same_cuda_major_version_is_accepted(catalog, sent):
    local_pool_with(node_info(gpus=1, driver_version="550.54", cuda_version="12.4"))
    near = environment(name="Jax")
    built(only(sent), cuda="12.9", lock=LOCK.replace("numpy", "jax"))
    near.refresh_from_db()
    flavor = Flavor.objects.get(accelerator_count=1)
    said = admission.assess(template=jupyter(), flavor=flavor, environment=near.current.digest)
    assert said.outcome is Outcome.FITS_NOW
    template = jupyter()
    template.pk, template.slug, template.min_cuda = None, "of-today", "12.9"
    template.save()
    said = admission.assess(template=template, flavor=flavor, environment=near.current.digest)
    assert said.outcome is Outcome.IMPOSSIBLE


def test_deprecated_environment_names_its_successor(local_pool, sent):
    old, new = environment(name="Old"), environment(name="Newer", source="pandas")
    old = environments.change(actor=SYSTEM, environment=old, deprecated=True, successor=new.slug)
    reason = software.deprecation_of(old)
    assert isinstance(reason, Reason)
    assert "Newer" in reason.params["successor"]
    assert software.deprecation_of(new) is None
