"""Reports of a check's two processes, validated message by message."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from provisioning.gpu.check import health
from provisioning.gpu.check.assess import raw_of
from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Unavailable
from provisioning.gpu.check.types import Action, Facts, Finding, Progress, Raw, Severity


@dataclass(slots=True)
class CheckState:
    """State reported by watcher and child. A child that violates the protocol loses all its results."""

    facts: Facts
    report_progress: Callable[[Progress], object]
    child_pid: int | None = None
    bus: str = ""
    """PCI address of the device or its parent GPU; empty if unknown."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    xid_events: bool = False
    samples: list[dict[str, Any]] = field(default_factory=list)
    link: list[tuple[int | None, int | None]] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    lost: bool = False
    watched_at: float = 0.0
    crowded: int = 0
    plan: tuple[Test, ...] = ()
    hello: bool = False
    running: Test | None = None
    since: float = 0.0
    results: dict[str, Raw] = field(default_factory=dict)
    ended: bool = False
    refused: bool = False
    software: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unavailable: Unavailable | None = None
    abandoned: bool = False

    # --- from the watcher ---
    def handle_watcher_message(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        self.watched_at = time.monotonic()
        if "nonce" in message and message["nonce"] != self.nonce:
            return
        if kind == "ready":
            self.facts = facts_of(message["facts"])
            self.bus = str(message["facts"].get("pci_bus_id") or "")
            self.before, self.xid_events = message["before"], message["xid_events"]
        elif kind == "unavailable":
            self.unavailable = Unavailable(message["text"], message["library"], message["fix"])
        elif kind == "lost":
            self.lost = True
        elif kind == "xid":
            self.xids.append(int(message["xid"]))
        elif kind == "after":
            self.after = message["after"]
        elif kind == "sample" and self.hello and not self.ended:
            processes = message.pop("processes", None)
            self.samples.append(message)
            if self.running is not None and self.running.probe == "pcie":
                self.link.append((message.get("pcie_gen"), message.get("pcie_width")))
            strange = health.foreign_processes(processes, self.child_pid)
            if strange:
                self.crowded += 1
                if self.crowded == 2:
                    self.findings += strange

    # --- from the child ---
    def from_child(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if "nonce" in message and message["nonce"] != self.nonce:
            return self.distrust("a message of another check (wrong nonce)")
        if kind == "unavailable" and "nonce" in message:
            self.unavailable = Unavailable(message["text"], message["library"], message["fix"])
            self.refused = True
        elif kind == "cannot" and "nonce" in message:
            self.find(
                "cannot",
                Severity.INCONCLUSIVE,
                str(message.get("text", "")) or "The check cannot run on this node.",
                Action.INSPECT,
            )
            self.refused = True
        elif kind == "broken" and "nonce" in message:
            worst = Severity.FAIL if message.get("device_fault") else Severity.INCONCLUSIVE
            self.find(
                "no_context", worst, f"CUDA could not create a context: {message.get('error')}.", Action.RESET
            )
            self.refused = True
        elif kind == "hello" and not self.hello and "nonce" in message:
            self._take_hello(message)
        elif not self.hello:
            return self.distrust(f"{kind!r} before 'hello'")
        elif kind == "start":
            self._take_start(str(message.get("test")))
        elif kind == "beat":
            if self.running is not None:
                self.progress("beat", text=f"{message.get('done')}/{message.get('of')}")
        elif kind == "result":
            self._take_result(message)
        elif kind == "end" and "nonce" in message:
            all_there = message.get("tests") == len(self.results) == len(self.plan)
            if self.running is not None or not all_there:
                return self.distrust("'end' before all tests were complete")
            self.ended = True
        else:
            self.distrust(f"an unknown message {kind[:40]!r}")
        return None

    def _take_hello(self, message: dict[str, Any]) -> None:
        facts = self.facts
        self.hello, self.since = True, time.monotonic()
        capability = message.get("compute_capability")
        if facts.compute_capability is None and isinstance(capability, list) and len(capability) == 2:
            self.facts = replace(self.facts, compute_capability=(int(capability[0]), int(capability[1])))
        if facts.sms is None and isinstance(message.get("sms"), int):
            self.facts = replace(self.facts, sms=message["sms"])
        kernels = message.get("kernels")
        origins = sorted({str(v) for v in kernels.values()}) if isinstance(kernels, dict) else []
        self.software = {"kernels": ", ".join(origins), "blas": str(message.get("blas") or "own kernels")}

    def _take_start(self, name: str) -> None:
        expected = self.plan[len(self.results)].name if len(self.results) < len(self.plan) else None
        if self.running is not None or name != expected:
            return self.distrust(f"test {name[:40]!r} out of order")
        self.running, self.since = self.plan[len(self.results)], time.monotonic()
        return self.progress("start")

    def _take_result(self, message: dict[str, Any]) -> None:
        raw = raw_of(message)
        if raw is None or self.running is None or raw.test != self.running.name:
            return self.distrust("a result that does not match the running test")
        if raw.state not in ("done", "skipped", "absent", "error"):
            return self.distrust("a result with an unknown state")
        # Measured here, since a child's clock is not trusted.
        self.results[raw.test] = replace(raw, duration_ms=round((time.monotonic() - self.since) * 1000))
        self.progress("result")
        self.running, self.since = None, time.monotonic()
        return None

    def distrust(self, content: str) -> None:
        """Discard everything that the child reported and ignore it from now on."""
        self.results.clear()
        self.running = None
        self.refused = True
        text = f"The check process sent {content}, so its results were discarded."
        self.find("untrusted", Severity.INCONCLUSIVE, text, Action.RETRY)

    def find(self, code: str, severity: Severity, text: str, action: Action = Action.RETRY) -> None:
        self.findings.append(Finding(code, severity, text, action))

    def progress(self, phase: str, text: str = "") -> None:
        name = self.running.name if self.running is not None else ""
        self.report_progress(Progress(phase, name, len(self.results), len(self.plan), text=text))


def facts_of(value: Mapping[str, Any]) -> Facts:
    """Return `Facts` from the watcher's message."""
    names = Facts.__slots__
    values = {name: value[name] for name in names if value.get(name) is not None}
    if "compute_capability" in values:
        values["compute_capability"] = tuple(values["compute_capability"])
    return Facts(**values)
