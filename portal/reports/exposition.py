"""Prometheus' text format, version 0.0.4: the part of it that gauges need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def labels_text(labels: Mapping[str, str]) -> str:
    """`{name="value",…}`, or nothing. Raises ValueError for a name that the format does not know."""
    for name in labels:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"not a label: {name!r}")
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def number_text(value: float) -> str:
    """Whole numbers without a point, others as short as they can be read back."""
    return str(int(value)) if value == int(value) else repr(float(value))


@dataclass(slots=True)
class Gauge:
    """One name with its samples; those that share labels may hand in their text, made once."""

    name: str
    help: str
    samples: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"not a metric name: {self.name!r}")

    def add(self, value: float, labels: Mapping[str, str] | str = "") -> None:
        self.samples.append((labels if isinstance(labels, str) else labels_text(labels), value))


def render(gauges: Iterable[Gauge]) -> Iterator[str]:
    """The lines, each with its end. A gauge without samples is left out."""
    for gauge in gauges:
        if gauge.samples:
            text = gauge.help.replace("\\", r"\\").replace("\n", r"\n")
            yield f"# HELP {gauge.name} {text}\n# TYPE {gauge.name} gauge\n"
            for labels, value in gauge.samples:
                yield f"{gauge.name}{labels} {number_text(value)}\n"
