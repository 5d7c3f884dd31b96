"""One check from start to end: starts watcher and child, enforces deadlines, ends both.

Their messages are collected in a `CheckState`.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provisioning.gpu.check import hardware_state, health, hindrances, meeting_env, thresholds, verdict
from provisioning.gpu.check.assess import assess
from provisioning.gpu.check.check_state import CheckState
from provisioning.gpu.check.nccl import ONE_NODE
from provisioning.gpu.check.plan import ANY_CAN_HANG, START_S, WITH_PEERS, Test, plan_for
from provisioning.gpu.check.process import Process
from provisioning.gpu.check.report import software_key
from provisioning.gpu.check.turns import WAIT_S, near_cpus, shared_link
from provisioning.gpu.check.types import (
    Action,
    Facts,
    Finding,
    Level,
    Progress,
    Raw,
    Rendezvous,
    Severity,
    TestResult,
)
from provisioning.gpu.check.wire import ProtocolViolation


@dataclass(frozen=True, slots=True)
class Simulation:
    """Test doubles of the CUDA driver and NVML, as module names. Results say nothing about a device."""

    driver: str
    nvml: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Time limits in seconds."""

    watcher_start_s: float = 60.0
    watcher_silent_s: float = 15.0
    watcher_end_s: float = 20.0
    child_start_s: float = START_S
    between_s: float = 10.0
    exit_s: float = 5.0
    term_s: float = 2.0
    kill_s: float = 10.0


class _Stop(Exception):
    """Ends the run; the findings say why."""


class Check:
    """One run: `run()` fills `state`, `judge()` compares it with floors and baselines."""

    def __init__(
        self,
        uuid: str,
        level: Level,
        *,
        peers: tuple[str, ...],
        peers_required: bool = True,
        meeting: Rendezvous | None = None,
        joint: bool = False,
        deadline_s: float,
        on_progress: Callable[[Progress], object] | None,
        simulation: Simulation | None,
        child: Sequence[str],
        watcher: Sequence[str],
        timing: Timing,
        plan: Sequence[Test] | None,
        last: Mapping[str, float] | None = None,
        turns: Path | None = None,
        alone: bool = False,
    ) -> None:
        self.level, self.peers, self.simulation, self.timing = level, peers, simulation, timing
        self._turns, self._alone, self._peers_required = turns, alone, peers_required
        self._meeting, self._joint, self._last = meeting, joint, last
        self.state = CheckState(Facts(uuid), self.report_progress)
        self._on_progress, self._given_plan = on_progress, plan
        self._child_argv, self._watcher_argv = child, watcher
        self._begun = time.monotonic()
        self._deadline = self._begun + deadline_s
        self._selector = selectors.DefaultSelector()
        self._watcher: Process | None = None
        self._child: Process | None = None

    # --- phases ---
    def run(self) -> None:
        """Fill the state. Raises unexpected errors, but never leaves a process behind."""
        try:
            with contextlib.suppress(_Stop):
                self._start_watcher()
                self._look_first()
                self._start_child()
                self._follow_child()
        finally:
            try:
                with contextlib.suppress(_Stop):
                    self._end_child()
                    self._end_watcher()
            finally:
                self._end(self._child)
                self._end(self._watcher)
                self._selector.close()

    def _start_watcher(self) -> None:
        self.report_progress(Progress("prepare", text="Reading the state of the device."))
        config = {"nonce": self.state.nonce, "uuid": self.state.facts.uuid, "peers": list(self.peers)}
        if self.simulation is not None:
            config["nvml"] = self.simulation.nvml
        self._watcher = Process("watcher", self._watcher_argv, config, {})
        self._watcher.register(self._selector)
        until = time.monotonic() + self.timing.watcher_start_s
        while self.state.before is None:
            self._pump(until)
            if self.state.unavailable is not None or self.state.lost:
                self._check_lost()
                raise _Stop
            if self.state.before is None and self._watcher.closed:
                self._stop(
                    "watcher_died",
                    Severity.INCONCLUSIVE,
                    f"NVML could not be read. {self._last_words(self._watcher)}",
                )
            if time.monotonic() >= until:
                text = f"NVML did not respond within {self.timing.watcher_start_s:.0f} s."
                self._stop("nvml_hung", Severity.HUNG, text, Action.REBOOT)

    def _look_first(self) -> None:
        """Check the device before any load: one that reports problems or is in use gets none."""
        before = self.state.before or {}
        self.state.findings += health.state(before)
        self.state.findings += hardware_state.before_load(before, self._last)
        self.state.findings += hindrances.before_load(before, instance=self.state.facts.mig)
        self.state.findings += health.foreign_processes(before.get("processes"))
        if before.get("processes") is None and not self.state.facts.vgpu:
            text = "NVML does not list the processes on the device, so the device may be in use."
            self.state.find("processes_unknown", Severity.INCONCLUSIVE, text, Action.INSPECT)
        if not self.state.xid_events and not self.state.facts.vgpu:
            text = "NVML does not report XID events on this node, so faults could go undetected."
            self.state.find("xids_unknown", Severity.INCONCLUSIVE, text, Action.INSPECT)
        if any(f.severity in (Severity.FAIL, Severity.INCONCLUSIVE) for f in self.state.findings):
            raise _Stop

    def _start_child(self) -> None:
        state = self.state
        state.plan = tuple(
            self._given_plan
            or plan_for(
                self.level,
                state.facts,
                self.peers,
                peers_required=self._peers_required,
                meeting=self._meeting,
                joint=self._joint,
            )
        )
        config: dict[str, Any] = {
            "nonce": state.nonce,
            "uuid": state.facts.uuid,
            "parent": state.facts.parent_uuid,
            "level": str(self.level),
            "seed": random.getrandbits(48),
            "tests": [{"name": t.name, "probe": t.probe, "params": dict(t.params)} for t in state.plan],
        }
        if self._turns is not None:
            config["turns"] = {
                "folder": str(self._turns),
                "alone": self._alone,
                "link": shared_link(state.bus) if state.bus else "",
                "cpus": near_cpus(state.bus) if state.bus else (),
            }
        if self.simulation is not None:
            config["simulate"] = self.simulation.driver
        visible = ",".join(
            (state.facts.uuid, *(self.peers if any(t.probe in WITH_PEERS for t in state.plan) else ()))
        )
        env = {
            "CUDA_VISIBLE_DEVICES": visible,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_CACHE_DISABLE": "1",
            **(meeting_env.meeting_environ(self._meeting) if self._meeting is not None else ONE_NODE),
        }
        self._child = Process("child", self._child_argv, config, env)
        state.child_pid = self._child.pid
        self._child.register(self._selector)
        state.since = time.monotonic()

    def _follow_child(self) -> None:
        state, child = self.state, self._child
        assert child is not None
        while not state.ended:
            self._pump(self._next_deadline()[0])
            self._check_lost()
            self._check_watcher()
            if state.refused:
                raise _Stop
            if state.ended:
                return
            if child.closed:
                self._stop_dead_child(child)
            due, late = self._next_deadline()
            if time.monotonic() >= due:
                late()

    def _next_deadline(self) -> tuple[float, Callable[[], None]]:
        """Return the next deadline and the function to call when it passes."""
        state, timing = self.state, self.timing
        if state.running is not None:
            own_deadline = (state.since + state.running.deadline_s, self._stop_hung_test)
        elif state.hello:
            wait_s = WAIT_S if self._turns is not None else 0.0
            own_deadline = (
                state.since + timing.between_s + wait_s,
                lambda: self._stop_silent_child("The check process stopped responding between two tests."),
            )
        else:
            text = f"CUDA did not create a context within {timing.child_start_s:.0f} s."
            own_deadline = (state.since + timing.child_start_s, lambda: self._stop_silent_child(text))
        return min(own_deadline, (self._deadline, self._stop_at_deadline), key=lambda pair: pair[0])

    def _stop_hung_test(self) -> None:
        test = self.state.running
        assert test is not None
        text = f"The test did not end within {test.deadline_s:g} s"
        if test.probe in ANY_CAN_HANG:
            text += f", with {', '.join(self.peers)}; any of the devices may be the cause"
        took = round((time.monotonic() - self.state.since) * 1000)
        self.state.results[test.name] = Raw(test.name, "hung", reason=text, duration_ms=took)
        self.state.running = None
        raise _Stop

    def _stop_silent_child(self, text: str) -> None:
        self._stop("check_hung", Severity.HUNG, text, Action.REBOOT)

    def _stop_at_deadline(self) -> None:
        self._stop(
            "deadline",
            Severity.INCONCLUSIVE,
            "The check did not complete within its time limit.",
            Action.RETRY,
        )

    def _stop_dead_child(self, child: Process) -> None:
        """Handle a closed pipe without an `end` message."""
        child.wait(1.0)
        code = child.code
        cause = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
        cut = " while sending a message," if child.cut_off else ""
        text = (
            f"The check process ended {cause}{cut} before its report was complete. {self._last_words(child)}"
        )
        self._stop("incomplete", Severity.INCONCLUSIVE, text.strip(), Action.RETRY)

    def _check_lost(self) -> None:
        if self.state.lost and not any(f.code == "lost" for f in self.state.findings):
            self._stop("lost", Severity.FAIL, "The device has fallen off the bus.", Action.REBOOT)

    def _check_watcher(self) -> None:
        watcher = self._watcher
        assert watcher is not None
        if watcher.closed:
            self._stop(
                "watcher_died",
                Severity.INCONCLUSIVE,
                f"The NVML watcher stopped during the check. {self._last_words(watcher)}",
            )
        if time.monotonic() - self.state.watched_at > self.timing.watcher_silent_s:
            self._stop("nvml_hung", Severity.HUNG, "NVML stopped responding under load.", Action.REBOOT)
        if self.state.crowded >= 2:
            raise _Stop

    # --- the end ---
    def _end_child(self) -> None:
        child = self._child
        if child is None:
            return
        if self.state.ended:
            child.wait(self.timing.exit_s)
        self._end(child)
        self._child = None

    def _end_watcher(self) -> None:
        watcher = self._watcher
        if watcher is None or self.state.before is None or self.state.lost:
            return
        watcher.finish()
        until = time.monotonic() + self.timing.watcher_end_s
        while (
            self.state.after is None
            and not watcher.closed
            and not self.state.lost
            and time.monotonic() < until
        ):
            self._pump(until)
        self._check_lost()
        if self.state.after is None and not any(
            f.code in ("watcher_died", "nvml_hung") for f in self.state.findings
        ):
            text = "The state of the device after the check is unknown."
            if watcher.closed:
                self.state.find(
                    "watcher_died",
                    Severity.INCONCLUSIVE,
                    f"{text} {self._last_words(watcher)}".strip(),
                    Action.RETRY,
                )
            else:
                self.state.find("nvml_hung", Severity.HUNG, f"{text} NVML is not responding.", Action.REBOOT)

    def _end(self, process: Process | None) -> None:
        """End a process. If the kernel does not let it go, abandon it with a finding."""
        if process is None or process.pid < 0:
            return
        process.unregister(self._selector)
        if process is self._child:
            self._child = None
        if process is self._watcher:
            self._watcher = None
        if not process.end(self.timing.term_s, self.timing.kill_s):
            self.state.abandoned = True
            waits = process.state() or "?"
            text = (
                f"The driver blocks process {process.pid} ({process.name}, state {waits}), "
                "so the check could not stop it."
            )
            self.state.find("abandoned", Severity.HUNG, text, Action.REBOOT)

    # --- messages ---
    def _pump(self, until: float) -> None:
        """Wait briefly for messages and process them."""
        wait = max(0.0, min(0.1, until - time.monotonic()))
        if not self._selector.get_map():
            time.sleep(wait)
            return
        for key, _ in self._selector.select(wait):
            process, stream = key.data
            try:
                for message in process.read(stream, self._selector):
                    self._take(process, message)
            except ProtocolViolation as error:
                if process is self._child:
                    self.state.distrust(str(error))

    def _take(self, process: Process, message: dict[str, Any]) -> None:
        if process is self._watcher:
            self.state.handle_watcher_message(message)
        elif process is self._child and not self.state.refused and not self.state.ended:
            self.state.from_child(message)

    # --- words ---
    def _stop(self, code: str, severity: Severity, text: str, action: Action = Action.RETRY) -> None:
        self.state.find(code, severity, text.strip(), action)
        raise _Stop

    def _last_words(self, process: Process) -> str:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        return f"Last output: {lines[-1][:300]}" if lines else ""

    def report_progress(self, progress: Progress) -> None:
        """Call `on_progress` with the elapsed time; its errors are ignored."""
        if self._on_progress is None:
            return
        with contextlib.suppress(Exception):
            self._on_progress(replace(progress, elapsed_ms=round((time.monotonic() - self._begun) * 1000)))

    # --- judging ---
    def judge(
        self,
        baseline: Mapping[str, float] | None,
        node_median: Mapping[str, float] | None,
        baseline_of: str = "",
    ) -> tuple[tuple[TestResult, ...], list[Finding]]:
        """Return the judged tests and all findings.

        Ignores baselines of other software (`baseline_of`).
        """
        state = self.state
        if not thresholds.comparable(baseline_of, software_key(state.facts.driver_version, state.software)):
            baseline = node_median = None
        link = thresholds.judge_link_state(state.facts, state.link)
        memory = hardware_state.memory_state(state.facts.ecc, (state.before, state.after))
        tests = tuple(
            assess(
                test, state.results.get(test.name), state.facts,
                link_state=link, baseline=baseline, node_median=node_median, memory=memory,
            )
            for test in state.plan
        )  # fmt: skip
        findings = list(state.findings)
        tests = hardware_state.excuse_lowered_limits(tests, findings)
        if state.before is not None and state.after is not None:
            codes = {f.code for f in findings}
            findings += [f for f in health.state(state.after) if f.code not in codes]
            findings += health.changes(state.before, state.after)
        findings += hardware_state.untested_findings(state.facts.compute_capability)
        findings += health.xids(state.xids)
        findings += health.throttling(state.samples)
        if state.ended and not state.samples:
            text = "NVML returned no samples during the load."
            findings.append(Finding("unwatched", Severity.INCONCLUSIVE, text, Action.RETRY))
        return tests, findings + verdict.of_tests(tests)
