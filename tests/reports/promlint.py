"""The rules of `promtool check metrics`, as in prometheus/client_golang `testutil/promlint`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

KINDS = ("counter", "gauge", "summary", "histogram", "gaugehistogram", "untyped")
NO_BASE_UNITS = {
    "minutes": "seconds", "hours": "seconds", "days": "seconds", "weeks": "seconds", "kelvins": "kelvin",
    "fahrenheit": "celsius", "rankine": "celsius", "inches": "meters", "yards": "meters", "miles": "meters",
    "bits": "bytes", "calories": "joules", "pounds": "grams", "ounces": "grams",
}  # fmt: skip
BASE_UNITS = "amperes|bytes|celsius|grams|joules|kelvin|meters|metres|seconds|volts"
PREFIXES = (
    "pico|nano|micro|milli|centi|deci|deca|hecto|kilo|kibi|mega|mibi|giga|gibi|tera|tebi|peta|pebi"
)  # fmt: skip
PREFIXED = re.compile(f"(?:{PREFIXES})(?:{BASE_UNITS}|{'|'.join(NO_BASE_UNITS)})")
ABBREVIATIONS = frozenset(["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"])
CAMEL_CASE = re.compile("[a-z][A-Z]")
SAMPLE = re.compile(r"([^ {]+)(?:\{(.*)\})? ")
LABEL = re.compile(r'([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"')
PARTS = ("", "_bucket", "_count", "_sum")


@dataclass
class Metric:
    """A family of the text format, with raw samples as (name, labels)."""

    name: str
    kind: str = "untyped"
    help: str = ""
    samples: list[tuple[str, str]] = field(default_factory=list)


def read(text: str) -> list[Metric]:
    """Return the families of a text in Prometheus' format."""
    metrics: dict[str, Metric] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            metric = metrics.setdefault(name, Metric(name))
            if what == "TYPE":
                metric.kind = rest
            else:
                metric.help = rest
        elif match := SAMPLE.match(line):
            owner = next(
                metric
                for metric in reversed(metrics.values())
                if match[1] in [metric.name + part for part in PARTS]
            )
            owner.samples.append((match[1], match[2] or ""))
    return list(metrics.values())


def problems(text: str) -> list[str]:
    """Return what promtool would report, as `metric: problem`."""
    return [f"{metric.name}: {problem}" for metric in read(text) for problem in _of(metric)]


def _of(metric: Metric) -> Iterator[str]:
    name, kind = metric.name, metric.kind
    words = name.lower().split("_")[1:]
    labels = {label for _, written in metric.samples for label in LABEL.findall(written)}
    if not metric.help:
        yield "no help text"
    for word in name.split("_"):
        if word in NO_BASE_UNITS or PREFIXED.fullmatch(word):
            yield f"{word} is no base unit"
            break
    if (kind == "counter") != name.endswith("_total") and kind != "untyped":
        yield "counters, and only they, end in _total"
    if kind not in ("gauge", "untyped") and name.endswith("_timestamp_seconds"):
        yield "only gauges end in _timestamp_seconds"
    if kind != "untyped":
        if kind != "histogram" and (name.endswith("_bucket") or "le" in labels):
            yield "_bucket and le are reserved for histograms"
        if kind not in ("histogram", "summary") and name.endswith(("_count", "_sum")):
            yield "_count and _sum are reserved for histograms and summaries"
        if kind != "summary" and "quantile" in labels:
            yield "quantile is reserved for summaries"
    if set(words) & set(KINDS[:-1]):
        yield "the type is in the name"
    if ":" in name:
        yield "a colon in the name"
    if CAMEL_CASE.search(name) or any(CAMEL_CASE.search(label) for label in labels):
        yield "camelCase"
    if ABBREVIATIONS & set(words):
        yield "an abbreviated unit"
    if len(set(metric.samples)) < len(metric.samples):
        yield "a sample twice"
