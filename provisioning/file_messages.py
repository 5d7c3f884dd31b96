"""Requests of the control plane about the files of a home, answered by `provisioning/agent/files`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from provisioning.types import PoolConfig

MAX_NAME = 255
Name = Annotated[str, Meta(max_length=MAX_NAME)]


@dataclass(frozen=True, slots=True)
class FilesQuestion:
    """A request to the file server of a home.

    `ask` holds the operation (`do`) and its parameters, see `provisioning.agent.files.server.Server.answer`.
    """

    pool: PoolConfig
    team: Name
    owner: Name
    ask: dict[str, Any] = field(default_factory=dict)
