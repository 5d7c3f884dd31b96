"""Draw the result of `bench.idle_replay` as an SVG of plain text, with a value beside each bar."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_WIDTH, _LEFT, _RIGHT, _BAR, _STEP = 860, 190, 110, 26, 44
_NAMES = {"without": "without reclaim", "with": "with reclaim"}
# Okabe and Ito's palette, which people with any kind of colour vision can distinguish.
_USED, _IDLE, _WAIT = "#0072B2", "#E69F00", "#009E73"


def draw(result: Mapping[str, Any]) -> str:
    """Return the SVG: GPU-hours held, used and unused, and first waits, without and with reclaim."""
    runs = result["runs"]
    most = max(row["gpu_hours_held"] for row in runs.values())
    longest = max(row["wait_p95_h"] for row in runs.values())
    parts: list[str] = []
    y = 96

    def x(value: float, top: float) -> float:
        return round(_LEFT + (value / top if top else 0.0) * (_WIDTH - _LEFT - _RIGHT), 1)

    def label(text: str) -> None:
        parts.append(
            f'<text x="{_LEFT - 14}" y="{y + 18}" text-anchor="end" fill="#1a1a1a">{escape(text)}</text>'
        )

    def bar(begin: float, end: float, colour: str) -> None:
        parts.append(
            f'<rect x="{begin}" y="{y}" width="{max(1.0, round(end - begin, 1))}" height="{_BAR}" '
            f'fill="{colour}"/>'
        )

    def value(at: float, text: str) -> None:
        parts.append(
            f'<text x="{at + 8}" y="{y + 18}" font-size="13" font-weight="600" fill="#1a1a1a">'
            f"{escape(text)}</text>"
        )

    described = []
    for name, caption in _NAMES.items():
        row = runs[name]
        label(caption)
        middle = x(row["gpu_hours_used"], most)
        bar(_LEFT, middle, _USED)
        bar(middle, x(row["gpu_hours_held"], most), _IDLE)
        value(x(row["gpu_hours_held"], most), f"{row['used_percent']:.0f} % used")
        described.append(f"{caption}: {row['gpu_hours_held']} GPU-hours held, {row['gpu_hours_used']} used")
        y += _STEP
    parts.append(_legend(y + 8))
    y += 62
    parts.append(f'<text x="24" y="{y - 16}" fill="#333333">Waits for the first start, hours</text>')
    for percent in ("p50", "p95"):
        for name, caption in _NAMES.items():
            waited = runs[name][f"wait_{percent}_h"]
            label(f"{percent}, {caption}")
            bar(_LEFT, x(waited, longest), _WAIT)
            value(x(waited, longest), f"{waited:.1f} h")
            described.append(f"{percent} {caption}: {waited:.1f} h")
            y += _STEP
    recovered = result["gpu_hours_recovered"]
    title = f"Reclaiming idle GPUs recovers {recovered:,} of {runs['without']['gpu_hours_held']:,} GPU-hours"
    subtitle = (
        f"{result['jobs']:,} jobs of the Philly trace on {result['gpus']:,} GPUs; idleness synthetic, "
        f"{result['use_percent']:.0f} % used"
    )
    height = y + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'aria-labelledby="title description" font-family="system-ui, sans-serif" font-size="14">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape("; ".join(described))}.</desc>',
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="24" y="34" font-size="17" font-weight="600" fill="#1a1a1a">{escape(title)}</text>',
            f'<text x="24" y="57" fill="#555555">{escape(subtitle)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _legend(y: int) -> str:
    elements, at = [], _LEFT
    for text, colour in (("GPU-hours used", _USED), ("held and idle", _IDLE)):
        elements.append(f'<rect x="{at}" y="{y - 11}" width="12" height="12" fill="{colour}"/>')
        elements.append(f'<text x="{at + 18}" y="{y}" fill="#333333">{escape(text)}</text>')
        at += 170
    return "\n".join(elements)
