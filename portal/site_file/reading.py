"""Parses a site file as plain YAML and validates it against the schema. Errors have line numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from portal.common.errors import InvalidInput
from portal.common.json_input import storable
from portal.common.reasons.reason import Reason
from portal.site_file.codes import SiteCode
from portal.site_file.schema import schema

MAX_LENGTH = 2_000_000
MAX_DEPTH = 20
MAX_MISTAKES = 20
Path = tuple[Any, ...]
SWITCHES = frozenset({("pools", "rebalancing")})
"""Sections and fields whose value may be `off`, which YAML reads as a boolean if unquoted."""


class Lines(dict[Path, int]):
    """The line number of each value, from 1."""

    def line_of(self, path: Sequence[Any]) -> int:
        """Return the line of the value, or of its nearest parent."""
        where = tuple(path)
        while where not in self and where:
            where = where[:-1]
        return self.get(where, 1)


def read(text: str) -> tuple[dict[str, Any], Lines]:
    """Return the site described by the text. Raises `InvalidInput` with the lines of all errors."""
    if len(text) > MAX_LENGTH:
        raise _invalid_file([Reason(SiteCode.FILE_TOO_LARGE, {"most": MAX_LENGTH})])
    if not storable(text):
        raise _invalid_file([Reason(SiteCode.FILE_SIGN)])
    try:
        # Without anchors, a document cannot be larger than its text.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if getattr(event, "anchor", None):
                raise _error_at(event.start_mark.line if event.start_mark else 0, SiteCode.FILE_ANCHOR)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or "unexpected end of the file").split())
        raise _error_at(mark.line if mark else 0, SiteCode.FILE_NOT_YAML, reason=problem[:200]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _error_at(0, SiteCode.FILE_NOT_YAML, reason=str(error)[:200]) from error
    lines = Lines()
    loader = yaml.SafeLoader("")
    try:
        value = _value(loader, root, (), lines) if root is not None else {}
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise _error_at(0, SiteCode.FILE_NOT_YAML, reason=str(error)[:200]) from error
    finally:
        loader.dispose()
    mistakes = sorted(_mistakes(value), key=lambda mistake: (lines.line_of(mistake[0]), str(mistake[0])))
    if mistakes:
        raise _invalid_file(
            [
                Reason(
                    SiteCode.FILE_LINE,
                    {"line": lines.line_of(path), "where": _format_path(path), "reason": message[:300]},
                )
                for path, message in mistakes[:MAX_MISTAKES]
            ]
        )
    return value, lines


def _value(loader: yaml.SafeLoader, node: yaml.Node, path: Path, lines: Lines) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > MAX_DEPTH:
        raise _error_at(node.start_mark.line, SiteCode.FILE_NOT_YAML, reason="it is nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*path, at), lines) for at, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        result = loader.construct_object(node)
        plain = isinstance(result, str | int | float | bool | None)
        if not plain or (isinstance(result, int | float) and ":" in str(node.value)):
            # An unquoted string that YAML reads as a date or a sexagesimal number.
            raise _error_at(
                node.start_mark.line, SiteCode.FILE_NOT_YAML, reason=f"write “{node.value}” in quotes"
            )
        switch = len(path) == 3 and (path[0], path[2]) in SWITCHES
        return "off" if switch and result is False else result
    result = {}
    for name, inner in node.value:
        key = loader.construct_object(name) if isinstance(name, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise _error_at(
                name.start_mark.line,
                SiteCode.FILE_NOT_YAML,
                reason="a name is not a string: put it in quotes",
            )
        if key in result:
            raise _error_at(name.start_mark.line, SiteCode.FILE_TWICE, name=key[:80])
        lines[(*path, key)] = name.start_mark.line + 1
        result[key] = _value(loader, inner, (*path, key), lines)
    return result


def _mistakes(value: Any) -> Iterable[tuple[Path, str]]:
    for error in Draft202012Validator(schema()).iter_errors(value):
        path = tuple(error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            names = set(error.schema.get("properties", ()))
            for name in error.instance:
                if name not in names:
                    near = get_close_matches(str(name), names)
                    hint = f"did you mean {', '.join(near)}?" if near else f"use one of: {_join_names(names)}"
                    yield (*path, name), f"unknown field “{name}”; {hint}"
        else:
            yield path, str(error.message)


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _format_path(path: Path) -> str:
    return ".".join(str(part) for part in path)[:120] or "the file"


def _error_at(line: int, code: SiteCode, **params: Any) -> InvalidInput:
    return _invalid_file([Reason(code, {"line": line + 1, **params})])


def _invalid_file(reasons: list[Reason]) -> InvalidInput:
    return InvalidInput(reasons[0], errors={"yaml": reasons})
