"""Celery tasks of the node plane. Each runs one driver call and sends the answer to the control plane."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import Any

from provisioning import messages, redis_client
from provisioning.celery_config import CONTROL_QUEUE, REPLY_PREFIX
from provisioning.errors import BackendUnavailable, ProvisioningError, StaleCommand
from provisioning.node import engine_calls, preparing
from provisioning.node.local_settings import driver_for
from provisioning.node.worker import app
from provisioning.types import (
    Command,
    Failure,
    HomeDeleted,
    HomeDeletion,
    LeftoverRemoval,
    LeftoverRemoved,
    Observation,
    Op,
    PoolConfig,
    Result,
    WorkspaceRef,
)

log = logging.getLogger(__name__)
REPLY_TTL_S = 30
MAX_TEXT = 20_000


@app.task(name="node.execute")
def execute(command: dict[str, Any]) -> None:
    """Run one command and report its result under the command's lease."""
    order = messages.load(command, Command)
    result = run(order, now=time.time())
    _send_to_control("control.apply_result", result=messages.dump(result))
    if order.op is Op.START and result.failure is None:
        preparing.schedule_preparation(order.pool)


@app.task(name="node.inventory")
def inventory(pool: dict[str, Any]) -> None:
    """Report the inventory of a pool, as seen from this worker."""
    result: Any = None
    failure: Failure | None = None
    try:
        config = messages.load(pool, PoolConfig)
        driver = driver_for(config)
        preparing.prepare_host(driver)
        with engine_calls.call(config):
            result = messages.dump(driver.inventory())
    except Exception as error:
        failure = failure_of(error)
    _send_to_control(
        "control.apply_inventory",
        pool=pool["slug"],
        inventory=result,
        failure=messages.dump(failure),
    )
    if failure is None:
        preparing.now(messages.load(pool, PoolConfig))


@app.task(name="node.list_owned")
def list_owned(pool: dict[str, Any], node: str) -> None:
    """Report everything on the backend that carries our names. A failure is only logged."""
    try:
        config = messages.load(pool, PoolConfig)
        with engine_calls.call(config):
            owned = [within_bounds(observation) for observation in driver_for(config).list_owned()]
    except Exception as error:
        log.warning("list_owned of pool %s failed: %s", pool.get("slug"), failure_of(error).message)
        return
    _send_to_control("control.apply_owned", pool=pool["slug"], node=node, owned=messages.dump(owned))


@app.task(name="node.observe_all")
def observe_all(pool: dict[str, Any], since: str, lease: str) -> None:
    """Report the workspaces of a pool that changed after `since`, or all, under the request's lease."""
    listed: Any = None
    failure: Failure | None = None
    try:
        config = messages.load(pool, PoolConfig)
        with engine_calls.call(config):
            found = driver_for(config).observe_all(since)
        listed = messages.dump(replace(found, listed=tuple(map(within_bounds, found.listed))))
    except Exception as error:
        failure = failure_of(error)
    _send_to_control(
        "control.apply_observed",
        pool=pool["slug"],
        lease=lease,
        observed=listed,
        failure=messages.dump(failure),
    )


@app.task(name="node.delete_home")
def delete_home(order: dict[str, Any]) -> None:
    """Delete a home, or part of it, and report under the order's lease whether it is gone."""
    answer = run_deletion(messages.load(order, HomeDeletion), now=time.time())
    _send_to_control("control.apply_home_deleted", answer=messages.dump(answer))


@app.task(name="node.list_leftovers")
def list_leftovers(pool: dict[str, Any], node: str) -> None:
    """Report leftovers. A failure is only logged."""
    try:
        config = messages.load(pool, PoolConfig)
        with engine_calls.call(config):
            leftovers = driver_for(config).list_leftovers()
    except Exception as error:
        log.warning("list_leftovers of pool %s failed: %s", pool.get("slug"), failure_of(error).message)
        return
    _send_to_control(
        "control.apply_leftovers", pool=pool["slug"], node=node, leftovers=messages.dump(leftovers)
    )


@app.task(name="node.remove_leftover")
def remove_leftover(order: dict[str, Any]) -> None:
    """Remove a leftover, and report under the order's lease whether it is gone."""
    answer = run_removal(messages.load(order, LeftoverRemoval), now=time.time())
    _send_to_control("control.apply_leftover_removed", answer=messages.dump(answer))


@app.task(name="node.read_logs")
def read_logs(pool: dict[str, Any], ref: dict[str, Any], tail_lines: int, reply_key: str) -> None:
    """Answer with a workspace's last log lines on a short-lived list that the caller waits on."""
    require_reply_key(reply_key)
    answer: dict[str, str]
    try:
        config = messages.load(pool, PoolConfig)
        with engine_calls.call(config):
            log_text = driver_for(config).logs(messages.load(ref, WorkspaceRef), tail_lines=tail_lines)
        answer = {"text": log_text}
    except Exception as error:
        answer = {"error": failure_of(error).message}
    reply(reply_key, answer)


@app.task(name="node.read_log_after")
def read_log_after(
    pool: dict[str, Any],
    ref: dict[str, Any],
    after: int | None,
    tail_lines: int,
    whole: bool,
    reply_key: str,
) -> None:
    """Answer, as `node.read_logs` does, with the log's growth since offset `after`."""
    require_reply_key(reply_key)
    answer: dict[str, Any]
    try:
        config = messages.load(pool, PoolConfig)
        workspace_ref = messages.load(ref, WorkspaceRef)
        with engine_calls.call(config):
            piece = driver_for(config).read_log(
                workspace_ref, after=after, tail_lines=tail_lines, whole=whole
            )
        answer = {"text": piece.text, "reached": piece.reached, "more": piece.more}
    except Exception as error:
        answer = {"error": failure_of(error).message}
    reply(reply_key, answer)


def require_reply_key(reply_key: str) -> None:
    """Raise `ValueError` unless it is a key for replies."""
    if not reply_key.startswith(REPLY_PREFIX):
        raise ValueError(f"not a reply key: {reply_key!r}")


def reply(reply_key: str, answer: dict[str, Any]) -> None:
    """Push a signed answer to the list that the caller waits on."""
    with (
        redis_client.client(app.conf.broker_url, socket_timeout=5) as connection,
        connection.pipeline() as pipe,
    ):
        pipe.rpush(reply_key, app.seal(answer, key=reply_key))
        pipe.expire(reply_key, REPLY_TTL_S)
        pipe.execute()


def run(command: Command, *, now: float) -> Result:
    """Run one command on its driver. Every outcome, including an unexpected error, is a `Result`."""
    try:
        if now > command.expires_at:
            raise _expired_error()
        with engine_calls.call(command.pool):
            observation = within_bounds(_call(command))
        return Result(op=command.op, ref=command.ref, lease=command.lease, observation=observation)
    except Exception as error:
        return Result(op=command.op, ref=command.ref, lease=command.lease, failure=failure_of(error))


def within_bounds(observation: Observation) -> Observation:
    """Return the observation with texts truncated to the control plane's limits."""
    if len(observation.log_tail) <= MAX_TEXT and len(observation.message) <= MAX_TEXT:
        return observation
    return replace(
        observation, log_tail=observation.log_tail[-MAX_TEXT:], message=observation.message[:MAX_TEXT]
    )


def run_deletion(order: HomeDeletion, *, now: float) -> HomeDeleted:
    """Run one deletion step. Every outcome, including an unexpected error, is an answer."""
    try:
        if now > order.expires_at:
            raise _expired_error()
        with engine_calls.call(order.pool):
            deleted = driver_for(order.pool).delete_home(team=order.team, owner=order.owner)
        return HomeDeleted(order.deletion, order.lease, done=deleted)
    except Exception as error:
        return HomeDeleted(order.deletion, order.lease, failure=failure_of(error))


def run_removal(order: LeftoverRemoval, *, now: float) -> LeftoverRemoved:
    """Run one removal step. Every outcome, including an unexpected error, is an answer."""
    try:
        if now > order.expires_at:
            raise _expired_error()
        with engine_calls.call(order.pool):
            removed = driver_for(order.pool).remove_leftover(order.kind, order.name)
        return LeftoverRemoved(order.orphan, order.lease, done=removed)
    except Exception as error:
        return LeftoverRemoved(order.orphan, order.lease, failure=failure_of(error))


def _expired_error() -> StaleCommand:
    return StaleCommand(
        "The node received the command after it had expired. The portal retries automatically."
    )


def _call(command: Command) -> Observation:
    driver = driver_for(command.pool)
    match command.op:
        case Op.START:
            if command.spec is None or command.placement is None:
                raise ValueError("a start command needs a spec and a placement")
            return driver.ensure_started(command.spec, command.placement)
        case Op.OBSERVE:
            return driver.observe(command.ref)
        case Op.STOP:
            return driver.ensure_stopped(command.ref, grace_s=command.grace_s)
        case Op.DELETE:
            return driver.ensure_deleted(command.ref, grace_s=command.grace_s)


def failure_of(error: Exception) -> Failure:
    """Return the public form of an error; its detail, and any unexpected error, is logged."""
    if not isinstance(error, ProvisioningError):
        log.exception("unexpected error in a driver")
        error = BackendUnavailable(
            f"The node had an unexpected error ({type(error).__name__}). "
            f"Ask an operator to check the log of the node worker on {os.uname().nodename}."
        )
    elif error.detail:
        log.warning("%s: %s", error.code, error.detail)
    return Failure(code=error.code, message=error.message, retryable=error.retryable, blame=error.blame.value)


def _send_to_control(task: str, **kwargs: Any) -> None:
    app.send_task(task, kwargs=kwargs, queue=CONTROL_QUEUE)
