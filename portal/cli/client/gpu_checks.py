"""`client.gpu_checks`"""

from __future__ import annotations

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class GpuChecks(Resource):
    """Checks of GPUs and of links between nodes."""

    def get(self, check_id: str) -> JsonObject:
        """Return a GPU check with its report."""
        return self._transport.get(path_of("gpu-checks", check_id))

    def create(self, *, device: str, level: str) -> JsonObject:
        """Check a device. Returns the check, or the one that is already running."""
        return self._transport.post("/gpu-checks", {"device": device, "level": level})

    def create_joint(self, *, node: str) -> JsonObject:
        """Check all GPUs of a node at once, by its id. Returns the check, or the running one."""
        return self._transport.post(path_of("nodes", node, "check-joint"))

    def create_link(self, *, node: str, with_node: str) -> JsonObject:
        """Check the link between two nodes, by their ids. Returns the check, or the running one."""
        return self._transport.post(path_of("nodes", node, "check-link"), {"with_node": with_node})
