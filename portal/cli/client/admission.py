"""`client.admission`"""

from __future__ import annotations

from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty


class Admission(Resource):
    """Previews of the scheduler's verdict on a request."""

    def preview(self, **request: Any) -> JsonObject:
        """Return the verdict on `template` and `flavor`.

        Optional are `team`, `environment`, `start_without_gpu` and `move_home`, as for a new workspace.
        """
        return self._transport.post("/admission/preview", drop_empty(request))
