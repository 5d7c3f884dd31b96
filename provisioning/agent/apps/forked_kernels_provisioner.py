"""Jupyter kernel provisioner `berth-forked`: forks kernels of this environment's own Python.

It is an entry point of `jupyter_client.kernel_provisioners`, found through the folder beside it. Kernels with
another interpreter, other options, or variables that an interpreter reads at start are started by Jupyter as
usual. Apart from the speed, clients see no difference: restarts, interrupts and shutdown use
`LocalProvisioner`.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from jupyter_client.provisioning import LocalProvisioner  # type: ignore[import-not-found]

BOUND_TIMEOUT_S = 2.0
BOUND_POLL_INTERVAL_S = 0.005
PLAIN_ARGUMENTS = {"env", "cwd", "kernel_id", "extra_arguments", "independent"}


class ForkedProvisioner(LocalProvisioner):  # type: ignore[misc]
    """`LocalProvisioner` with a faster `launch_kernel`."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        # This file is loaded with its folder on the path.
        import forked_kernels  # type: ignore[import-not-found]

        env = dict(kwargs.get("env") or os.environ)
        cwd = str(kwargs.get("cwd") or os.getcwd())  # noqa: PTH109
        kernel = None
        if not kwargs.keys() - PLAIN_ARGUMENTS and not kwargs.get("independent"):
            kernel = forked_kernels.start(cmd, env, cwd)
        if kernel is None:
            return await super().launch_kernel(cmd, **kwargs)
        self.process = kernel
        self.pid = self.pgid = kernel.pid  # it leads its own session
        self.cwd = cwd
        await self._wait_until_bound()
        return self.connection_info

    async def _wait_until_bound(self) -> None:
        """Wait until the kernel's ports accept connections, up to a short timeout.

        A client that connects earlier is refused and retries each port after a tenth of a second. If the
        shell port is ready before the published output, Jupyter misses the first message and asks again after
        half a second, which is longer than the start takes.
        """
        info = self.connection_info
        if info.get("transport") != "tcp":
            return
        deadline = time.monotonic() + BOUND_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                # The heartbeat's port is bound last.
                _, writer = await asyncio.open_connection(info["ip"], info["hb_port"])
            except OSError:
                await asyncio.sleep(BOUND_POLL_INTERVAL_S)
            else:
                writer.close()
                return
