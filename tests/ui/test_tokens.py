"""Every pair of meaningful colours meets WCAG AA in both themes, as defined by the style sheet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOKENS = (Path(__file__).parents[2] / "static/berth/tokens.css").read_text()
THEMES = {"light": 0, "dark": 1}
TEXT = 4.5
PART = 3.0

PAIRS = [
    *[(text, back, TEXT) for text in ("text", "text-2", "text-3") for back in ("canvas", "surface", "hover")],
    *[(text, "sunken", TEXT) for text in ("text", "text-2", "text-3")],
    *[
        (text, back, TEXT)
        for text in ("accent", "ok", "warn", "bad", "sim")
        for back in ("canvas", "surface")
    ],
    *[(tone, f"{tone}-soft", TEXT) for tone in ("accent", "ok", "warn", "bad", "sim")],
    *[(text, "accent-soft", TEXT) for text in ("text", "text-2", "ok", "warn", "bad", "sim")],
    *[
        ("on-accent", fill, TEXT)
        for fill in ("accent-fill", "accent-fill-hover", "bad-fill", "bad-fill-hover")
    ],
    *[(line, back, PART) for line in ("line-strong", "focus", "ok-fill") for back in ("canvas", "surface")],
    *[("accent-fill", back, PART) for back in ("surface", "sunken")],
]


def token(name: str, theme: str) -> tuple[float, float, float]:
    """Return the colour of a token in a theme, as red, green and blue from 0 to 1."""
    match = re.search(rf"--{name}: (?:light-dark\((#\w+), (#\w+)\)|(#\w+));", TOKENS)
    assert match, f"no token --{name}"
    value = match.group(3) or match.group(1 + THEMES[theme])
    return tuple(int(value[i : i + 2], 16) / 255 for i in (1, 3, 5))  # type: ignore[return-value]


def luminance(colour: tuple[float, float, float]) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("front", "back", "least"), PAIRS)
def test_colour_pairs_have_sufficient_contrast(front: str, back: str, least: float, theme: str) -> None:
    found = contrast(token(front, theme), token(back, theme))
    assert found >= least, f"--{front} on --{back} in the {theme} theme: {found:.2f}, needs {least}"


def test_contrast_of_black_on_white_is_21() -> None:
    assert round(contrast((0, 0, 0), (1, 1, 1))) == 21
