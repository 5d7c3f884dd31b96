"""Console sessions of the documents: `$ command` lines with their output; `…` matches anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\dZ"


def follow(session: str, run: Callable[[str], str], *, made_up: Mapping[str, str] | None = None) -> None:
    """Run each command and compare its output.

    `made_up` maps values that differ between sites to their pattern; the printed values replace them in later
    commands.
    """
    values: dict[str, str] = {}
    for command, printed in parts(session):
        for text, value in values.items():
            command = command.replace(text, value)
        output = run(command)
        if not printed.strip():
            continue
        names = list(made_up or {})
        match = re.search(pattern(printed, made_up or {}), output, flags=re.DOTALL)
        assert match, f"$ {command}\n{output}\nis not as in the document:\n{printed}"
        values |= {names[int(key[1:])]: value for key, value in match.groupdict().items()}


def parts(session: str) -> list[tuple[str, str]]:
    """Commands with their continuation lines, and their output."""
    commands: list[tuple[str, str]] = []
    goes_on = False
    for line in session.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], ""))
        elif goes_on:
            commands[-1] = (f"{commands[-1][0][:-1].rstrip()} {line.strip()}", "")
        else:
            commands[-1] = (commands[-1][0], f"{commands[-1][1]}{line}\n")
        goes_on = line.endswith("\\")
    return commands


def pattern(printed: str, made_up: Mapping[str, str]) -> str:
    """A pattern for `printed` in which times, placeholders and spacing may differ."""
    seen: set[str] = set()
    pieces = []
    names = list(made_up)
    alternatives = "|".join([*map(re.escape, sorted(names, key=len, reverse=True)), "…", _TIME, r"\s+"])
    at = 0
    for match in re.finditer(alternatives, printed.strip()):
        pieces.append(re.escape(printed.strip()[at : match.start()]))
        at = match.end()
        text = match[0]
        if text in made_up:
            name = f"g{names.index(text)}"
            pieces.append(f"(?P={name})" if name in seen else f"(?P<{name}>{made_up[text]})")
            seen.add(name)
        elif text == "…":
            pieces.append(".*?")
        else:
            pieces.append(r"\s*" if text.isspace() else _TIME)
    return "".join([*pieces, re.escape(printed.strip()[at:])])
