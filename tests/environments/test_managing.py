"""Environments: creation, changes, versions, deletion and permissions."""

from __future__ import annotations

import pytest

from portal.catalog.environments import builds, selectors, services, sources
from portal.catalog.environments.models import (
    BuildState,
    Environment,
    EnvironmentBuild,
    SourceKind,
    VersionState,
)
from portal.catalog.models import Template
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event
from portal.people.accounts.models import Role
from tests.environments.helpers import LOCK, built, commands, environment, only, ready, version_of
from tests.factories import MembershipFactory, TeamFactory, WorkspaceFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
LINES = {"source_kind": "packages", "source": "numpy>=2\n# for plots\nmatplotlib"}


def errors_of(refused: pytest.ExceptionInfo[InvalidInput]) -> dict[str, list[str]]:
    return refused.value.field_errors


def test_owner_creates_a_team_environment_and_its_build_is_sent(team, alice, local_pool, sent):
    made = services.create(actor=alice, team=team, name="Vision tools", **LINES)
    assert (made.slug, made.team, made.current, made.updated_by) == ("vision-tools", team, None, "alice")
    (message,) = sent.of("node.environment_build")
    assert message.queue == "node.node-1"
    command = only(sent)
    assert command.source.splitlines() == ["numpy>=2", "# for plots", "matplotlib", "jupyterlab", "marimo"]
    assert (command.digest, command.lock, command.python) == ("", "", sources.own_python())
    assert list(Event.objects.filter(kind__startswith="environment.").values_list("kind", flat=True))[:1]
    assert Event.objects.filter(kind="environment.created", actor=alice, team_id=team.pk).exists()


@pytest.mark.parametrize("username", ["bob", "charlie", "petra"])
def test_missing_permissions(request, username, team, local_pool):
    actor = request.getfixturevalue(username)
    with pytest.raises(NotAllowed):
        services.create(actor=actor, team=team, name="Mine", **LINES)
    with pytest.raises(NotAllowed):
        services.create(actor=actor, team=None, name="Everybody's", **LINES)
    assert not Environment.objects.filter(slug="mine").exists()


def test_owner_creates_environments_for_own_team_only(team, alice, local_pool):
    with pytest.raises(NotAllowed):
        services.create(actor=alice, team=None, name="All", **LINES)
    with pytest.raises(NotAllowed):
        services.create(actor=alice, team=TeamFactory(), name="Theirs", **LINES)


def test_environment_of_another_team_is_hidden(team, alice, charlie, local_pool, sent):
    made = services.create(actor=alice, team=team, name="Secret", **LINES)
    other = TeamFactory(slug="audio")
    MembershipFactory(team=other, user=charlie, role=Role.OWNER)
    assert made not in selectors.environments_for(charlie)
    with pytest.raises(NotFound):
        selectors.environment_by_slug(charlie, made.slug)
    own = environment(team=other, name="Own", actor=charlie)
    build = EnvironmentBuild.objects.get(version__environment=made)
    with pytest.raises(NotFound):
        selectors.build_by_id(own, build.pk)
    assert made not in selectors.usable_by(charlie, other)


@pytest.mark.parametrize(
    "source",
    [
        "-r /etc/passwd",
        "--index-url https://evil.example/simple",
        "-e .",
        "numpy @ https://evil.example/numpy.whl",
        "numpy @ file:///etc/shadow",
        "git+https://evil.example/x",
        "./here",
        "/etc",
        "numpy; rm -rf /",
        "numpy --config-settings=x",
        "<script>alert(1)</script>",
    ],
)
@pytest.mark.parametrize("kind", ["packages", "requirements", "lock"])
def test_lines_outside_the_index_are_refused(source, kind, local_pool):
    with pytest.raises(InvalidInput) as refused:
        sources.validate_source(
            kind, f"pandas{' --hash=sha256:' + 'a' * 64 if kind == 'lock' else ''}\n{source}"
        )
    (said,) = errors_of(refused)["source"]
    assert said.startswith("Line 2 ")


@pytest.mark.parametrize(
    "text",
    [
        "not = [toml",
        "[project]\nname = 'x'",
        "[project]\ndependencies = 'numpy'",
        "[project]\ndependencies = []",
        "[project]\ndependencies = ['numpy @ https://evil.example/n.whl']",
        "[project]\ndependencies = ['numpy']\n[tool.uv]\nindex-url = 'https://evil.example'",
        "[project]\ndependencies = ['numpy']\n[tool.uv.sources]\nnumpy = {path = '/etc'}",
    ],
)
def test_invalid_pyproject_is_refused(text):
    with pytest.raises(InvalidInput) as refused:
        sources.validate_source("pyproject", text)
    assert errors_of(refused)["source"]


def test_lock_without_hashes_is_a_requirements_file():
    assert sources.validate_source("lock", LOCK)[0] == SourceKind.LOCK
    assert sources.validate_source("lock", LOCK + "pandas==2.2.0\n")[0] == SourceKind.REQUIREMENTS
    continued = "numpy==2.1.0 \\\n    --hash=sha256:" + "a" * 64
    assert sources.validate_source("lock", continued)[0] == SourceKind.LOCK


def test_missing_or_too_long_values_are_refused(team, alice, local_pool):
    for wrong in (
        {"source": "# nothing"},
        {"source": "numpy\n" * 50_000},
        {"python": "2.7"},
        {"source_kind": "conda"},
        {"slug": "../etc"},
        {"name": " "},
    ):
        with pytest.raises(InvalidInput) as refused:
            services.create(actor=alice, team=team, **{"name": "Bad", **LINES, **wrong})
        assert list(errors_of(refused)) == list(wrong) or "slug" in errors_of(refused)
    assert not Environment.objects.exists()


def test_slug_is_unique(team, alice, local_pool):
    services.create(actor=alice, team=team, name="Tools", **LINES)
    with pytest.raises(StateConflict) as refused:
        services.create(actor=alice, team=team, name="Tools", **LINES)
    assert refused.value.code == "name_taken"


def test_new_source_creates_another_version_that_becomes_current_when_ready(team, alice, local_pool, sent):
    made = ready(sent, team=team, actor=alice)
    assert made.current == version_of(made)
    second = services.change_source(actor=alice, environment=made, source_kind="packages", source="pandas")
    made.refresh_from_db()
    assert (second.number, second.state, made.current.number) == (2, VersionState.BUILDING, 1)
    assert built(only(sent), lock=LOCK.replace("numpy", "pandas"))
    made.refresh_from_db()
    assert made.current == second
    services.restore(actor=alice, environment=made, number=1)
    made.refresh_from_db()
    assert made.current.number == 1


def test_only_ready_versions_become_current(team, alice, local_pool, sent):
    made = services.create(actor=alice, team=team, name="Tools", **LINES)
    with pytest.raises(StateConflict):
        services.restore(actor=alice, environment=made, number=1)
    with pytest.raises(NotFound):
        services.restore(actor=alice, environment=made, number=7)


def test_repeated_request_during_a_build_builds_once(team, alice, local_pool, sent):
    made = services.create(actor=alice, team=team, name="Tools", **LINES)
    again = services.change_source(actor=alice, environment=made, **LINES)
    assert services.rebuild(actor=alice, environment=made) == again == version_of(made)
    assert EnvironmentBuild.objects.count() == 1
    assert len(commands(sent)) == 1


def test_rebuild_creates_a_new_version_of_the_same_source(team, alice, local_pool, sent):
    made = ready(sent, team=team, actor=alice)
    again = services.rebuild(actor=alice, environment=made)
    assert (again.number, again.source, again.lock) == (2, version_of(made).source, "")
    assert only(sent).lock == ""


def test_environment_in_use_is_not_deleted_and_its_users_are_named(
    team, alice, bob, local_pool, sent, catalog
):
    made = ready(sent, team=team, actor=alice)
    workspace = WorkspaceFactory(owner=bob, team=team, name="train", environment_version=made.current)
    Template.objects.filter(slug="jupyterlab").update(environment=made)
    with pytest.raises(StateConflict) as refused:
        services.delete(actor=alice, environment=made)
    assert "train" in refused.value.message
    assert "JupyterLab" in refused.value.message
    type(workspace).objects.filter(pk=workspace.pk).update(state="terminated")
    Template.objects.update(environment=None)
    services.delete(actor=alice, environment=made)
    assert not Environment.objects.exists()
    workspace.refresh_from_db()
    assert workspace.environment_version is None


def test_deletion_cancels_a_running_build(team, alice, local_pool, sent):
    made = services.create(actor=alice, team=team, name="Tools", **LINES)
    command = only(sent)
    services.delete(actor=alice, environment=made)
    (message,) = sent.of("node.environment_cancel")
    assert message.kwargs["command"] == {"build": command.build, "lease": command.lease}
    assert not built(command)


def test_curated_environments_can_be_disabled_but_not_deleted(olga, local_pool):
    made = environment()
    Environment.objects.filter(pk=made.pk).update(curated=True)
    with pytest.raises(StateConflict):
        services.delete(actor=olga, environment=made)
    assert not services.change(actor=olga, environment=made, enabled=False).enabled


def test_successor_must_be_available_to_the_same_users(team, alice, local_pool):
    made = services.create(actor=alice, team=team, name="Old", **LINES)
    next_one = services.create(actor=alice, team=team, name="Newer", **LINES)
    other = environment(team=TeamFactory(), name="Other")
    changed = services.change(actor=alice, environment=made, deprecated=True, successor="newer")
    assert (changed.deprecated, changed.successor) == (True, next_one)
    for wrong in (other.slug, made.slug, "nothing"):
        with pytest.raises(InvalidInput):
            services.change(actor=alice, environment=made, successor=wrong)
    with pytest.raises(InvalidInput):
        services.change(actor=alice, environment=next_one, successor="old")
    assert services.change(actor=alice, environment=made, successor="").successor is None


def test_environment_of_the_node_cannot_be_built(olga):
    made = Environment.objects.create(
        slug="minimal", name="Minimal", kind="node", updated_at="2026-01-01T00:00Z"
    )
    with pytest.raises(StateConflict):
        services.rebuild(actor=olga, environment=made)


def test_build_without_a_node_waits_for_one(team, alice):
    made = services.create(actor=alice, team=team, name="Tools", **LINES)
    version = version_of(made)
    assert (version.state, version.failure["code"]) == (VersionState.FAILED, "no_building_node")
    assert version.retry_at is not None
    assert not EnvironmentBuild.objects.exists()


def test_managers_cancel_builds(team, alice, bob, local_pool, sent):
    services.create(actor=alice, team=team, name="Tools", **LINES)
    build = EnvironmentBuild.objects.get()
    with pytest.raises(NotAllowed):
        builds.cancel(actor=bob, build_id=build.pk)
    assert builds.cancel(actor=alice, build_id=build.pk).state == BuildState.CANCELLED
    with pytest.raises(StateConflict):
        builds.cancel(actor=alice, build_id=build.pk)
    assert version_of(Environment.objects.get()).state == VersionState.FAILED
    assert version_of(Environment.objects.get()).retry_at is None


def test_automatic_build_names_the_system():
    made = environment(build=False)
    assert (made.updated_by, version_of(made).state) == (SYSTEM.label, VersionState.NEW)
