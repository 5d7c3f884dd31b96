"""Draw the result of a replay as an SVG of plain text.

Each workload is a line, and each policy a dot on it. Shapes differ as well as colours (from Okabe and Ito's
palette, which people with any kind of colour vision can distinguish), and each value of Berth is written
beside its dot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[str, float]
_WIDTH, _LEFT, _RIGHT, _TOP, _STEP = 860, 150, 60, 96, 58
_STYLES = {
    "Random": ("#999999", "cross"),
    "Best fit": ("#E69F00", "square"),
    "GPU packing": ("#009E73", "triangle"),
    "FGD, published": ("#0072B2", "ring"),
    "Berth": ("#D55E00", "disc"),
}


def draw(title: str, subtitle: str, rows: Sequence[tuple[str, Sequence[Point]]], axis: str) -> str:
    """Return the SVG. Each row has a label and its points, named as in the legend."""
    values = [value for _, points in rows for _, value in points]
    low, high = int(min(values)) - 0.5, max(values) + 0.75
    height = _TOP + _STEP * len(rows) + 78

    def x(value: float) -> float:
        return round(_LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-labelledby="title description" font-family="system-ui, sans-serif" font-size="14">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(_described(rows))}</desc>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="24" y="34" font-size="17" font-weight="600" fill="#1a1a1a">{escape(title)}</text>',
        f'<text x="24" y="57" fill="#555555">{escape(subtitle)}</text>',
    ]
    bottom = _TOP + _STEP * len(rows) - 14
    first = int(low) + 1
    for tick in range(first, int(high) + 1):
        parts.append(f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{_TOP - 10}" y2="{bottom}" stroke="#e3e3e3"/>')
        parts.append(
            f'<text x="{x(tick)}" y="{bottom + 18}" text-anchor="middle" fill="#555555">{tick}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle" fill="#333333">{escape(axis)}</text>'
    )
    for place, (label, points) in enumerate(rows):
        y = _TOP + 18 + _STEP * place
        parts.append(
            f'<text x="{_LEFT - 14}" y="{y + 5}" text-anchor="end" fill="#1a1a1a">{escape(label)}</text>'
        )
        parts.append(
            f'<line x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}" stroke="#c8c8c8" stroke-width="1"/>'
        )
        for name, value in points:
            parts.append(_mark(name, x(value), y))
            if name == "Berth":
                parts.append(
                    f'<text x="{x(value) + 12}" y="{y - 8}" font-size="13" font-weight="600" '
                    f'fill="#8a3c00">{value:.1f}</text>'
                )
    parts.append(
        _legend([name for name in _STYLES if any(name == each for each, _ in rows[0][1])], height - 16)
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend(names: Sequence[str], y: int) -> str:
    parts, at = [], _LEFT
    for name in names:
        parts.append(_mark(name, at, y - 5))
        parts.append(f'<text x="{at + 13}" y="{y}" fill="#333333">{escape(name)}</text>')
        at += 40 + 8 * len(name)
    return "\n".join(parts)


def _mark(name: str, x: float, y: float) -> str:
    colour, shape = _STYLES[name]
    shapes: Mapping[str, str] = {
        "disc": f'<circle cx="{x}" cy="{y}" r="7" fill="{colour}"/>',
        "ring": f'<circle cx="{x}" cy="{y}" r="6" fill="none" stroke="{colour}" stroke-width="3"/>',
        "square": f'<rect x="{x - 5}" y="{y - 5}" width="10" height="10" fill="{colour}"/>',
        "triangle": f'<path d="M{x} {y - 7}L{x + 6.5} {y + 5}H{x - 6.5}Z" fill="{colour}"/>',
        "cross": f'<path d="M{x - 5} {y - 5}l10 10m0 -10l-10 10" stroke="{colour}" stroke-width="3"/>',
    }
    return shapes[shape]


def _described(rows: Sequence[tuple[str, Sequence[Point]]]) -> str:
    return " ".join(
        f"{label}: " + ", ".join(f"{name} {value:.1f} %" for name, value in points) + "."
        for label, points in rows
    )
