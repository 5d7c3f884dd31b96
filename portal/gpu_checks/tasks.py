"""Celery entry points."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from portal.celery import app
from portal.fleet.inventory.node_messages import is_from_node, received
from portal.gpu_checks import device_errors, policy, results, share_notes
from provisioning.check_messages import CheckAnswer, DeviceErrors
from provisioning.share_messages import ShareNotes


@app.task(name="control.check_gpus")
def check_gpus() -> None:
    policy.run()


@app.task(name="control.gpu_check_progress", from_nodes=True)
def gpu_check_progress(run: str, lease: str, progress: dict[str, Any]) -> None:
    if results.is_from_run_node(run, lease):
        results.apply_progress(run_id=UUID(run), lease=lease, progress=progress)


@app.task(name="control.apply_gpu_check", from_nodes=True)
def apply_gpu_check(answer: dict[str, Any]) -> None:
    message = received(answer, CheckAnswer, of="a GPU check")
    if message is not None and results.is_from_run_node(message.run, message.lease):
        results.apply_answer(message)


@app.task(name="control.apply_device_errors", from_nodes=True)
def apply_device_errors(report: dict[str, Any]) -> None:
    errors = received(report, DeviceErrors, of="a watcher")
    if errors is not None and is_from_node(errors.node):
        device_errors.apply(errors)


@app.task(name="control.apply_share_notes", from_nodes=True)
def apply_share_notes(report: dict[str, Any]) -> None:
    notes = received(report, ShareNotes, of="a guard of shared GPUs")
    if notes is not None and is_from_node(notes.node):
        share_notes.apply(notes)
