"""Requests about the files of a home, answered synchronously."""

from __future__ import annotations

from typing import Any

from provisioning import messages
from provisioning.errors import BackendUnavailable
from provisioning.file_messages import FilesQuestion
from provisioning.node.homes import homes_of
from provisioning.node.local_settings import driver_for
from provisioning.node.tasks import failure_of, reply, require_reply_key
from provisioning.node.worker import app


@app.task(name="node.files")  # type: ignore[untyped-decorator]
def files(question: dict[str, Any], reply_key: str) -> None:
    """Answer as `node.read_logs` does: `{"ok": …}`, `{"refused": …}` (the file server's refusal) or
    `{"error": text, "code": code}`."""
    require_reply_key(reply_key)
    answer: dict[str, Any]
    try:
        request = messages.load(question, FilesQuestion)
        homes = homes_of(driver_for(request.pool))
        if homes is None:
            raise BackendUnavailable("The portal cannot show files of this pool. Open them in a workspace.")
        answer = homes.files(team=request.team, owner=request.owner, question=request.ask)
    except Exception as error:
        failure = failure_of(error)
        answer = {"error": failure.message, "code": failure.code}
    reply(reply_key, answer)
