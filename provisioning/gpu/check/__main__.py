"""Run one check: `python -m provisioning.gpu.check --uuid GPU-… --level quick`.

Exit codes: 0 pass, 1 degraded, 2 fail, 3 inconclusive, 4 no driver or GPU, 5 hung, 64 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from provisioning.gpu.check import meeting_env
from provisioning.gpu.check.report import render
from provisioning.gpu.check.runner import run_check
from provisioning.gpu.check.types import EXIT_USAGE, Level, Progress, Rendezvous
from provisioning.gpu.host import rdma_ports, slowest_port_gb_s


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def _measures(path: str) -> dict[str, float]:
    value = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError("the file must contain a JSON object of figures by name")
    return {str(name): float(figure) for name, figure in value.items()}


def _meeting(args: argparse.Namespace) -> Rendezvous:
    """Return the rendezvous of both ends. Raises `ValueError` with the reason if it is invalid."""
    host, colon, port = args.meet.rpartition(":")
    address = host.removeprefix("[").removesuffix("]")
    if not (colon and address and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"--meet must be ADDRESS:PORT, not {args.meet!r}")
    ports = rdma_ports()
    if args.transport == "rdma" and not any(rdma_port.active for rdma_port in ports):
        raise ValueError("no RDMA port of this node is up; use --transport socket for its other network")
    carries = slowest_port_gb_s(ports) if args.transport == "rdma" else 0.0
    return Rendezvous(args.rank, address, int(port), args.partner, args.transport, carries)


def main(argv: list[str] | None = None) -> int:
    parser = _Parser(prog="python -m provisioning.gpu.check", description="Check one GPU or MIG instance.")
    parser.add_argument("--uuid", required=True, help="UUID from nvidia-smi -L: GPU-… or MIG-…")
    parser.add_argument("--level", choices=[str(level) for level in Level], default="quick")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--baseline", metavar="FILE", help="JSON file with figures of earlier passed checks")
    parser.add_argument("--node-median", metavar="FILE", help="JSON file with median figures of the node")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="UUID", help="idle GPU to measure links to; repeatable"
    )
    parser.add_argument(
        "--meet", metavar="ADDRESS:PORT", help="check the link to another node; use the same address there"
    )
    parser.add_argument("--rank", type=int, choices=(0, 1), help="0 on the node with ADDRESS, 1 on the other")
    parser.add_argument("--with", dest="partner", default="", metavar="NAME", help="name of the other node")
    parser.add_argument("--transport", choices=sorted(meeting_env.NET), default="rdma")
    parser.add_argument("--joint", action="store_true", help="load this GPU and all peers at once")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="stop after this time")
    args = parser.parse_args(argv)
    if not args.uuid.startswith(("GPU-", "MIG-")):
        parser.error(f"invalid UUID {args.uuid!r}: it must start with GPU- or MIG-")
    if (args.meet is None) != (args.rank is None):
        parser.error("--meet and --rank must be used together")
    if args.joint and (args.meet is not None or not args.peer):
        parser.error("--joint needs --peer, and excludes --meet")
    if args.deadline is not None and not args.deadline > 0:
        parser.error("--deadline must be greater than 0")
    try:
        baseline = _measures(args.baseline) if args.baseline else None
        median = _measures(args.node_median) if args.node_median else None
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"could not read figures: {error}")
    try:
        meeting = _meeting(args) if args.meet is not None else None
    except ValueError as error:
        parser.error(str(error))

    def show(progress: Progress) -> None:
        if progress.phase == "start" and sys.stderr.isatty():
            print(f"  [{progress.done + 1}/{progress.total}] {progress.test}", file=sys.stderr, flush=True)

    report = run_check(
        args.uuid, args.level, baseline=baseline, node_median=median, on_progress=show,
        deadline_s=args.deadline, peers=args.peer, meeting=meeting, joint=args.joint,
    )  # fmt: skip
    print(json.dumps(report.to_dict(), indent=2) if args.json else render(report))
    return report.exit_code


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
