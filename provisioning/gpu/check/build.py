"""Build the packaged cubins for machines without NVRTC: `python -m provisioning.gpu.check.build`."""

from __future__ import annotations

import hashlib
import json
import sys

from provisioning.gpu.check.compiler import (
    ARCHITECTURES,
    CUBINS,
    NoCubin,
    arch_name,
    compile_unit,
    source_hash,
    units_of,
)
from provisioning.gpu.check.nvrtc import compilers

LIMIT_BYTES = 2560 * 1024


def main() -> int:
    """Write all cubins; return 1 if one cannot be built or they exceed the size limit."""
    built: dict[str, bytes] = {}
    # Code of the older compiler works with older and newer drivers.
    oldest = min(compilers(), key=lambda compiler: compiler.major, default=None)
    if oldest is None or oldest.major > 12:
        print(
            "NVRTC of CUDA 12 is not installed. Install it: pip install nvidia-cuda-nvrtc-cu12.",
            file=sys.stderr,
        )
        return 1
    try:
        for capability in ARCHITECTURES:
            for unit in units_of(capability):
                name = f"{unit}.{arch_name(capability, unit)}.cubin"
                built[name] = compile_unit(unit, capability, oldest)
    except NoCubin as error:
        print(error, file=sys.stderr)
        return 1
    total = sum(map(len, built.values()))
    if total >= LIMIT_BYTES:
        print(f"The cubins have {total} bytes, which exceeds the limit of {LIMIT_BYTES}.", file=sys.stderr)
        return 1
    CUBINS.mkdir(exist_ok=True)
    for old in CUBINS.glob("*.cubin"):
        if old.name not in built:
            old.unlink()
    for name, code in built.items():
        (CUBINS / name).write_bytes(code)
    manifest = {
        "nvrtc": oldest.version,
        "sources": {unit: source_hash(unit) for unit in sorted({name.split(".")[0] for name in built})},
        "cubins": {name: hashlib.sha256(code).hexdigest() for name, code in sorted(built.items())},
    }
    (CUBINS / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"Built {len(built)} cubins, {total} bytes, with NVRTC {oldest.version}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
