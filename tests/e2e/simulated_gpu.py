"""A simulated GPU on an instance's machine, for workspaces with real apps.

The node worker reads it through a fake libnvidia-ml. Agents cannot load that in their sandbox, so their
heartbeats get a constant use of 0 % on their way.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

UUID = "GPU-00000000-0000-4000-8000-000000000001"
MODEL = "Simulated GPU"
LIBRARY = f"""
#include <stdio.h>
typedef unsigned long long wide;
int nvmlInit_v2(void) {{ return 0; }}
int nvmlInitWithFlags(unsigned flags) {{ return 0; }}
int nvmlShutdown(void) {{ return 0; }}
const char *nvmlErrorString(int code) {{ return "not simulated"; }}
int nvmlSystemGetDriverVersion(char *text, unsigned size) {{ snprintf(text, size, "570.0"); return 0; }}
int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = 1; return 0; }}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {{ *device = (void *)1; return 0; }}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {{ *device = (void *)1; return 0; }}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {{
  snprintf(text, size, "{UUID}"); return 0; }}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {{
  snprintf(text, size, "{MODEL}"); return 0; }}
int nvmlDeviceGetMemoryInfo(void *device, wide *memory) {{
  memory[0] = memory[1] = 16ull << 30; memory[2] = 0; return 0; }}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {{ rates[0] = rates[1] = 0; return 0; }}
"""


def library(folder: Path) -> Path:
    """The folder with the fake library, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for libnvidia-ml cannot be built")
    folder.mkdir()
    (folder / "nvml.c").write_text(LIBRARY)
    command = [compiler, "-shared", "-fPIC", "-w", "-o", "libnvidia-ml.so.1", "nvml.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder


class _Reports(BaseHTTPRequestHandler):
    """Forwards the node's requests to the portal and adds GPU use to heartbeats."""

    portal: int
    starts: dict[str, int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.rstrip("/").endswith("/heartbeat"):
            gpu = {"uuid": UUID, "utilization_percent": 0, "memory_used_mib": 0, "memory_total_mib": 16384}
            said = json.loads(body)
            # Only the first start has the GPU; later ones have none to report.
            first = self.starts.setdefault(said["workspace_id"], said["generation"])
            gpus = [gpu] if said["generation"] == first else None
            body = json.dumps({**said, "activity": {**said.get("activity", {}), "gpus": gpus}}).encode()
        headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
        onward = http.client.HTTPConnection("127.0.0.1", self.portal, timeout=20)
        try:
            onward.request(self.command, self.path, body, headers)
            answer = onward.getresponse()
            status, said = answer.status, answer.read()
        except OSError:
            status, said = 502, b""
        finally:
            onward.close()
        self.send_response(status)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST  # noqa: N815 - the name is the server's

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def reports() -> Iterator[ThreadingHTTPServer]:
    """The address for agents' reports; `serve_for` sets the portal's port."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Reports", (_Reports,), {"portal": 0, "starts": {}})
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def serve_for(server: ThreadingHTTPServer, port: int) -> None:
    """Forward reports to the portal at this port."""
    server.RequestHandlerClass.portal = port  # type: ignore[attr-defined]
