"""Jupyter's kernel provisioner `berth-forked`: kernels of this environment's own Python are forked.

It is an entry point of `jupyter_client.kernel_provisioners`, found through the folder beside it. Kernels
with another interpreter, other options or variables that an interpreter reads as it begins are started as
Jupyter starts them. Whoever asks for a kernel cannot tell the difference but by time: restarts,
interrupts and ends go through `LocalProvisioner`.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from jupyter_client.provisioning import LocalProvisioner  # type: ignore[import-not-found]

BOUND_TIMEOUT_S = 2.0
BOUND_LOOK_S = 0.005
PLAIN_ARGUMENTS = {"env", "cwd", "kernel_id", "extra_arguments", "independent"}


class ForkedProvisioner(LocalProvisioner):  # type: ignore[misc]
    """`LocalProvisioner` with a faster `launch_kernel`."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        # Where this file is read, its folder is on the path.
        import forked_kernels  # type: ignore[import-not-found]

        env = dict(kwargs.get("env") or os.environ)
        cwd = str(kwargs.get("cwd") or os.getcwd())  # noqa: PTH109
        kernel = None
        if not kwargs.keys() - PLAIN_ARGUMENTS and not kwargs.get("independent"):
            kernel = forked_kernels.start(cmd, env, cwd)
        if kernel is None:
            return await super().launch_kernel(cmd, **kwargs)
        self.process = kernel
        self.pid = self.pgid = kernel.pid  # it leads a session of its own
        self.cwd = cwd
        await self._wait_until_bound()
        return self.connection_info

    async def _wait_until_bound(self) -> None:
        """Until the kernel's ports can be connected to, or it is clear that this will not be soon.

        Whoever connects before that is refused and tries again a tenth of a second later, each port by
        itself. Where the shell is there before what the kernel publishes, Jupyter misses its first word and
        asks again half a second later, which is longer than the start takes.
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
                await asyncio.sleep(BOUND_LOOK_S)
            else:
                writer.close()
                return
