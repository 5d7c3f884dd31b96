"""Files of a node: below `BERTH_HOME`, accessible only to its own user."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEM_HOME = Path("/var/lib/berth")
USER_HOME = "~/.local/share/berth"


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """Folders and files of one node."""

    home: Path

    @classmethod
    def find(cls, home: str, environ: Mapping[str, str]) -> NodeFolder:
        """Return the folder of `--home`, else `BERTH_HOME`, else the user's default."""
        text = home or environ.get("BERTH_HOME") or (str(SYSTEM_HOME) if os.geteuid() == 0 else USER_HOME)
        return cls(Path(text).expanduser().resolve())

    @property
    def id(self) -> str:
        """ID that distinguishes this node's services from others on the machine."""
        return hashlib.sha256(b"node\0" + os.fsencode(self.home)).hexdigest()[:12]

    @property
    def driver_instance(self) -> str:
        """ID with which the local driver marks processes of its workspaces."""
        return hashlib.sha256(str(self.home).encode()).hexdigest()[:16]

    @property
    def state_file(self) -> Path:
        """File with the node's identity; the files beside it are copies for programs."""
        return self.home / "node" / "node.json"

    @property
    def pending(self) -> Path:
        """File of a join whose answer has not arrived."""
        return self.home / "node" / "joining.json"

    @property
    def key(self) -> Path:
        return self.home / "node" / "node.key"

    @property
    def certificate(self) -> Path:
        return self.home / "node" / "node.pem"

    @property
    def authority(self) -> Path:
        return self.home / "node" / "authority.pem"

    @property
    def signing_key(self) -> Path:
        return self.home / "node" / "signing.key"

    @property
    def control_key(self) -> Path:
        return self.home / "node" / "control.pub"

    @property
    def settings(self) -> Path:
        """File with variables of this node, as NAME=value lines."""
        return self.home / "node.env"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def local(self) -> Path:
        """Folder of the local driver's state."""
        return self.home / "local"

    @property
    def environments(self) -> Path:
        return self.home / "environments"

    @property
    def gateway_config(self) -> Path:
        return self.run / "node-gateway.json"
