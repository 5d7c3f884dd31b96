"""Builds: messages, results, losses and retries, and nodes without environments in use."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog.environments import builds, logs, results, selectors, services, upkeep
from portal.catalog.environments.models import (
    BuildState,
    EnvironmentBuild,
    StoredContent,
    VersionState,
)
from portal.catalog.environments.tasks import apply_environment_build, environment_progress
from portal.common.actors import SYSTEM
from portal.common.events.models import Notification
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Node, Pool
from provisioning import messages
from provisioning.environment_messages import EnvironmentBuilt, EnvironmentProgress, FailedLine
from provisioning.environments.content import digest_of
from provisioning.types import HeldEnvironment
from tests import sites
from tests.environments.helpers import (
    LOCK,
    build_of,
    built,
    commands,
    environment,
    failed,
    only,
    progress,
    ready,
    version_of,
)
from tests.factories import WorkspaceFactory, inventory_of, node_info
from tests.senders import NODE_KEY, OTHER_KEY, sent_by, trust

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
DIGEST = digest_of(LOCK, "3.12")


def second_node(pool: Pool, *held: HeldEnvironment) -> Node:
    info = node_info("node-2", environments=held)
    inventory.apply_inventory(pool=pool, inventory=inventory_of(info))
    return Node.objects.get(name="node-2")


def test_progress_is_stored_and_extends_the_lease(local_pool, sent, clock):
    environment()
    command = only(sent)
    assert progress(command, "downloading", done=5, total=10, log="numpy\n")
    build = build_of(command)
    assert (build.state, build.stage, build.done, build.log) == ("building", "downloading", 5, "numpy\n")
    assert selectors.percent_of(build) == 35
    clock.shift(50)
    assert progress(command, "installing", log_offset=6, log="pandas\n")
    clock.shift(50)
    upkeep.sweep()
    assert commands(sent) == []
    assert build_of(command).log == "numpy\npandas\n"


def test_build_result_updates_the_node_at_once(local_pool, sent):
    made = ready(sent)
    node = Node.objects.get()
    assert f"environment:{DIGEST}" in node.provides
    assert node.environments == [
        {"digest": DIGEST, "size_mib": 300, "programs": ["jupyter-lab", "marimo", "python3"]}
    ]
    version = made.current
    assert (version.digest, version.size_mib, version.lock) == (DIGEST, 300, LOCK)
    assert version.packages == [{"name": "numpy", "version": "2.1.0", "size_kib": 30_720}]
    assert StoredContent.objects.get().digest == DIGEST


def test_inventory_adds_and_removes_environments_of_a_node(local_pool):
    held = HeldEnvironment(DIGEST, 300, ("jupyter-lab",))
    info = node_info(environments=(held,), provides=("rdma", "environment:" + "f" * 32))
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(info))
    assert Node.objects.get().provides == [f"environment:{DIGEST}", "rdma"]
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(node_info()))
    assert (Node.objects.get().provides, Node.objects.get().environments) == ([], [])


def test_repeated_late_or_foreign_results_are_ignored(local_pool, sent):
    environment()
    command = only(sent)
    other = type(command)(**{**messages.dump(command), "lease": "0" * 32, "source_kind": command.source_kind})
    assert not progress(other)
    assert not built(other)
    assert not results.apply_built(EnvironmentBuilt("no uuid", command.lease))
    assert not results.apply_progress(EnvironmentProgress("no uuid", "", "waiting"))
    assert built(command)
    assert not built(command)
    assert not progress(command)
    assert not failed(command, "unforeseen")


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "f" * 32},
        {"digest": ""},
        {"lock": ""},
        {"digest": digest_of(LOCK, "3.11")},
    ],
)
def test_digest_that_does_not_match_the_lock_is_never_accepted(wrong, local_pool, sent):
    made = environment()
    command = only(sent)
    assert built(command, **({"lock": LOCK} | wrong))
    version = version_of(made)
    assert (version.state, version.digest) == (VersionState.FAILED, "")
    assert version.failure["code"] == "build_unsound"
    assert Node.objects.get().environments == []


def test_results_are_accepted_only_from_the_assigned_node(local_pool, sent, settings, tmp_path):
    second_node(local_pool)
    settings.BERTH_NODE_KEYS_DIR = tmp_path
    trust(tmp_path, "node-1", NODE_KEY)
    trust(tmp_path, "node-2", OTHER_KEY)
    made = environment()
    command = only(sent)
    answer = EnvironmentBuilt(command.build, command.lease, DIGEST, LOCK)
    for sender in ("node.node-2", "control", ""):
        with sent_by(sender):
            apply_environment_build(answer=messages.dump(answer))
            told = EnvironmentProgress(command.build, command.lease, "installing")
            environment_progress(progress=messages.dump(told))
    assert version_of(made).state == VersionState.BUILDING
    assert build_of(command).state == BuildState.QUEUED
    with sent_by("node.node-1"):
        environment_progress(progress=messages.dump(told))
        apply_environment_build(answer={"nonsense": 1})
        apply_environment_build(answer=messages.dump(answer))
    assert version_of(made).state == VersionState.READY


def test_build_of_a_killed_worker_is_sent_again(local_pool, sent, clock):
    made = environment()
    first = only(sent)
    progress(first, log="one\n")
    clock.shift(builds.SILENT_S + 1)
    upkeep.sweep()
    second = only(sent)
    assert (second.build, second.lease == first.lease) == (first.build, False)
    assert not built(first)
    progress(second, log="two\n")
    assert build_of(second).log == "one\ntwo\n"
    assert built(second)
    assert version_of(made).state == VersionState.READY


def test_build_on_a_silent_node_fails_after_max_attempts_and_is_retried_later(local_pool, sent, clock):
    made = environment()
    for _ in range(builds.MAX_ATTEMPTS):
        only(sent)
        clock.shift(builds.BEGIN_WITHIN_S + 1)
        upkeep.sweep()
    version = version_of(made)
    assert (version.state, version.failure["code"]) == (VersionState.FAILED, "build_node_did_not_answer")
    assert version.retry_at > timezone.now()
    upkeep.sweep()
    assert commands(sent) == []
    clock.shift(builds.FIRST_RETRY_S + 1)
    upkeep.sweep()
    assert built(only(sent))
    assert version_of(made).state == VersionState.READY


def test_endless_progress_is_abandoned(local_pool, sent, clock, settings):
    settings.BERTH_ENVIRONMENT_BUILD_S = 60
    environment()
    command = only(sent)
    progress(command)
    clock.shift(60 * 1.5 + 121)
    assert not progress(command)


@pytest.mark.parametrize(
    ("code", "final"),
    [
        ("resolution_failed", True),
        ("hash_mismatch", True),
        ("too_large", True),
        ("build_failed", True),
        ("cancelled", True),
        ("index_unreachable", False),
        ("disk_full", False),
        ("timed_out", False),
        ("no_python", False),
        ("uv_missing", False),
        ("unforeseen", False),
        ("of another version", False),
    ],
)
def test_source_errors_are_final_and_others_are_retried(code, final, team, alice, olga, local_pool, sent):
    made = services.create(
        actor=alice, team=team, name="Tools", source_kind="packages", source="numpy\nno-such-package"
    )
    line = FailedLine(2, "no-such-package \x1b[31mwas not found\x1b[0m")
    assert failed(only(sent), code, failed_line=line)
    version = version_of(made)
    assert version.state == VersionState.FAILED
    assert (version.retry_at is None) == final
    told = Notification.objects.filter(kind="environment.build_failed")
    recipients = set(told.values_list("user__username", flat=True))
    if code != "cancelled":
        assert recipients == ({"alice"} if final else {"olga"})
    if code == "resolution_failed":
        assert version.failure["params"]["source_line"] == 2
        assert version.failure["params"]["log_line"] == "no-such-package was not found"
        assert told.get().body.startswith("The package requirements conflict in line 2")


def test_retries_back_off_exponentially(local_pool, sent, clock):
    made = environment()
    waits = []
    for _ in range(4):
        failed(only(sent), "index_unreachable")
        version = version_of(made)
        waits.append(round((version.retry_at - timezone.now()).total_seconds()))
        clock.shift(waits[-1] + 1)
        upkeep.sweep()
    assert waits == [60, 120, 240, 480]
    assert builds.backoff(99) == timedelta(seconds=builds.LAST_RETRY_S)


def test_node_without_a_used_environment_builds_it_from_the_same_lock(local_pool, sent):
    ready(sent)
    second_node(local_pool)
    upkeep.sweep()
    (message,) = sent.of("node.environment_build")
    assert message.queue == "node.node-2"
    command = only(sent)
    assert (command.lock, command.digest, command.source) == (LOCK, DIGEST, "")
    upkeep.sweep()
    assert commands(sent) == []
    assert built(command)
    upkeep.sweep()
    assert commands(sent) == []
    assert all(holding.holds for holding in selectors.holdings(DIGEST))


def test_failure_on_one_node_keeps_others_ready(olga, local_pool, sent, clock):
    made = ready(sent)
    second_node(local_pool)
    upkeep.sweep()
    failed(only(sent), "disk_full")
    assert version_of(made).state == VersionState.READY
    upkeep.sweep()
    assert commands(sent) == []
    clock.shift(builds.FIRST_RETRY_S + 1)
    upkeep.sweep()
    assert len(commands(sent)) == 1
    assert Notification.objects.filter(user=olga, kind="environment.build_failed").count() == 1


def test_offline_retired_and_simulated_nodes_get_no_builds(local_pool, pool, sent):
    ready(sent)
    node = second_node(local_pool)
    for fields in ({"online": False}, {"retired": True, "online": True}):
        Node.objects.filter(pk=node.pk).update(**fields)
        upkeep.sweep()
        assert commands(sent) == []


def test_node_builds_one_at_a_time_and_user_requests_come_first(team, alice, local_pool, sent):
    environment(name="First")
    first = only(sent)
    environment(name="By itself", source="polars")
    services.create(actor=alice, team=team, name="Asked", source_kind="packages", source="duckdb")
    assert commands(sent) == []
    built(first)
    assert "duckdb" in only(sent).source


def test_equal_sources_are_resolved_once_and_built_once(local_pool, sent):
    second_node(local_pool)
    environment(name="One")
    command = only(sent)
    made = environment(name="Two")
    upkeep.sweep()
    assert commands(sent) == []
    built(command)
    upkeep.sweep()
    following = commands(sent)
    assert {each.digest for each in following} == {DIGEST}
    assert all(each.lock == LOCK for each in following)
    for each in following:
        built(each)
    assert version_of(made).digest == DIGEST


def test_only_unused_environments_are_removed_after_a_while(local_pool, sent, clock, settings):
    made = ready(sent)
    foreign = HeldEnvironment("e" * 32, 5)
    held = HeldEnvironment(DIGEST, 300)
    info = node_info(environments=(foreign, held))
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(info))
    upkeep.sweep()
    services.delete(actor=SYSTEM, environment=made)
    upkeep.sweep()
    assert sent.of("node.environment_remove") == []
    clock.shift(settings.BERTH_ENVIRONMENT_KEEP_DAYS * 86_400 + 1)
    upkeep.sweep()
    (message,) = sent.take("node.environment_remove")
    assert message.kwargs["command"] == {"digest": DIGEST}
    ready(sent, name="Again")
    upkeep.sweep()
    assert sent.of("node.environment_remove") == []


def test_version_in_use_is_kept(local_pool, sent, bob, team):
    made = ready(sent)
    old = made.current
    workspace = WorkspaceFactory(owner=bob, team=team, environment_version=old, state="stopped")
    services.rebuild(actor=SYSTEM, environment=made)
    built(only(sent), lock=LOCK.replace("2.1.0", "2.2.0"))
    assert old in selectors.versions_in_use()
    type(workspace).objects.update(state="terminated")
    assert old not in selectors.versions_in_use()
    upkeep.sweep()
    assert StoredContent.objects.get(pk=old.digest).unused_since is not None


def test_build_is_sent_after_redis_returns(local_pool, sent, clock):
    sent.away = True
    environment()
    sent.away = False
    assert commands(sent) == []
    clock.shift(builds.BEGIN_WITHIN_S + 1)
    upkeep.sweep()
    assert len(commands(sent)) == 1


# --- the log -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\rb\r\nc", "a\nb\nc"),
        ("\x00\x08nul\x7f\u202eturned\u2066", "nulturned"),
        ("\x1bc\x1b(Bcleared", "cleared"),
        ("\x9b2Jcleared", "cleared"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("tab\tstays\n", "tab\tstays\n"),
    ],
)
def test_terminal_control_characters_are_removed_from_logs(raw, kept):
    assert logs.clean(raw) == kept


def test_log_pieces_are_joined_by_offset():
    log, dropped, received = logs.append_text("", 0, 0, offset=0, text="abc")
    assert logs.append_text(log, dropped, received, offset=0, text="abc") == ("abc", 0, 3)
    assert logs.append_text(log, dropped, received, offset=2, text="cd") == ("abcd", 0, 4)
    assert logs.append_text(log, dropped, received, offset=9, text="z") == ("abc\n[…]\nz", 0, 10)


def test_log_is_bounded_and_keeps_its_end():
    log, dropped, received = "", 0, 0
    for number in range(40):
        text = f"{number:05d} {'x' * 50}\n" * 1000
        log, dropped, received = logs.append_text(log, dropped, received, offset=received, text=text)
        assert len(log) <= logs.MAX_LOG
    assert dropped + len(log) == received
    assert log.startswith("000")
    assert log.endswith("x\n")


def test_old_builds_except_the_last_are_deleted(local_pool, sent):
    version = version_of(environment(build=False))
    node = Node.objects.get()
    ended = timezone.now() - timedelta(days=400)
    EnvironmentBuild.objects.bulk_create(
        EnvironmentBuild(version=version, node=node, state=BuildState.FAILED, ended_at=ended)
        for _ in range(upkeep.MAX_BUILDS_KEPT + 7)
    )
    assert upkeep.prune() == 7
    assert EnvironmentBuild.objects.count() == upkeep.MAX_BUILDS_KEPT


def test_result_includes_the_end_of_the_log(local_pool, sent):
    environment()
    command = only(sent)
    assert progress(command, "resolving", log="Python 3.12\n")
    # The progress between the two has not arrived yet, and is dropped when it does.
    assert failed(command, "no_such_package", log_offset=7, log="3.12\nBecause numpyy was not found\n")
    assert not progress(command, "resolving", log_offset=12, log="Because numpyy was not found\n")
    assert build_of(command).log == "Python 3.12\nBecause numpyy was not found\n"
