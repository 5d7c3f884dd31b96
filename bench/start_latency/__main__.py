"""Measure from click to notebook: `python -m bench.start_latency [--runs 10] [--json FILE]`.

The contestants alternate, so that changes in the machine's speed affect all of them equally.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from datetime import UTC, datetime
from pathlib import Path

from bench.start_latency.contestants import ROOT, Bare, Berth, Contestant, Floor, Hub, PlainBerth

PROXY_VERSION = "5.3.0"
LOCK = Path(__file__).with_name("hub.lock")


def main() -> int:
    arguments = parse()
    notebook_env = find_notebook_env(arguments.notebook_env)
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as temporary:
        folder = Path(temporary)
        contestants: list[Contestant] = [
            make(folder, notebook_env) for make in (Floor, Bare, PlainBerth, Berth)
        ]
        left_out = "JupyterHub was left out as asked" if arguments.without_hub else ""
        try:
            if not arguments.without_hub:
                contestants.append(Hub(folder, notebook_env, hub_environment(), proxy_program()))
        except (OSError, subprocess.CalledProcessError) as error:
            left_out = f"JupyterHub was left out: {error}"
            print(left_out, file=sys.stderr)
        seconds, kernels = measure(contestants, arguments.runs)
    report(seconds, kernels, left_out, arguments.json)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.start_latency", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="counted starts of each, after one warm-up")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--notebook-env", type=Path, help="default: what `make up` or `make test` has built")
    parser.add_argument("--without-hub", action="store_true", help="leave JupyterHub out")
    return parser.parse_args()


def find_notebook_env(chosen: Path | None) -> Path:
    named = chosen or os.environ.get("BERTH_TEST_NOTEBOOK_ENV") or ROOT / "var" / "environments" / "notebook"
    folder = Path(named).resolve()
    if not (folder / "bin" / "jupyter-lab").exists():
        sys.exit(f"There is no jupyter-lab in {folder}. Run `make bench`, which installs it.")
    return folder


def hub_environment() -> Path:
    """Return JupyterHub's environment, built from its lock once."""
    folder = ROOT / "var" / "bench" / "hub"
    stamp = folder / "complete"
    locked = LOCK.read_text()
    if not stamp.exists() or stamp.read_text() != locked:
        print("Installing JupyterHub …", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True, symlinks=True)
        pip = [str(folder / "bin" / "pip"), "install", "-q", "--no-deps", "--require-hashes", "-r", str(LOCK)]
        subprocess.run(pip, check=True)
        stamp.write_text(locked)
    return folder


def proxy_program() -> Path:
    """Return the path of configurable-http-proxy, installed with npm once."""
    folder = ROOT / "var" / "bench" / f"proxy-{PROXY_VERSION}"
    program = folder / "node_modules" / ".bin" / "configurable-http-proxy"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm, which brings configurable-http-proxy, is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        package = f"configurable-http-proxy@{PROXY_VERSION}"
        subprocess.run(
            [npm, "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder), package],
            check=True,
            stdout=sys.stderr,
        )
    return program


def measure(
    contestants: list[Contestant], runs: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds to JupyterLab, and from there to the first kernel, by contestant."""
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    kernels: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    try:
        for contestant in contestants:
            contestant.open()
        for round_number in range(runs + 1):
            for contestant in contestants:
                took = contestant.start()
                kernel = contestant.first_kernel()
                contestant.clear()
                warming = round_number == 0
                label = "warm-up" if warming else f"run {round_number:2}"
                print(f"{label}  {contestant.name:18} {took:6.3f} s, kernel {kernel:6.3f} s", file=sys.stderr)
                if not warming:
                    seconds[contestant.name].append(took)
                    kernels[contestant.name].append(kernel)
    finally:
        for contestant in contestants:
            contestant.close()
    return seconds, kernels


def report(
    seconds: dict[str, list[float]], kernels: dict[str, list[float]], left_out: str, target: Path | None
) -> None:
    medians = table("click to JupyterLab", seconds)
    kernel_medians = table("first kernel", kernels)
    if left_out:
        print(left_out)
    if target is not None:
        figures = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "seconds": seconds,
            "medians": medians,
            "kernel_seconds": kernels,
            "kernel_medians": kernel_medians,
            "left_out": left_out,
        }
        target.write_text(json.dumps(figures, indent=2) + "\n")


def table(title: str, seconds: dict[str, list[float]]) -> dict[str, float]:
    """Print the figures of all contestants and return their medians."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"\n{title:19} {'min':>7} {'median':>8} {'max':>8}   Berth / this")
    for name, values in seconds.items():
        ratio = medians[Berth.name] / medians[name]
        print(f"{name:18} {min(values):8.3f} {medians[name]:8.3f} {max(values):8.3f}   {ratio:.2f}")
    return medians


if __name__ == "__main__":
    raise SystemExit(main())
