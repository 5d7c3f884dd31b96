"""`berth completion SHELL`: prints a shell script with all commands and options. Makes no requests."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

from portal.cli.parser import parser

Option = tuple[tuple[str, ...], str, bool]
"""An option: its spellings, its help, and whether it takes a value."""


@dataclass
class Command:
    """A command: its words, its subcommands, and its options."""

    words: tuple[str, ...]
    verbs: dict[str, str] = field(default_factory=dict)
    options: list[Option] = field(default_factory=list)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)


def script(shell: str) -> str:
    commands = list(_commands(parser(), ()))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


def completion(arguments: argparse.Namespace) -> int:
    print(script(arguments.shell), end="")
    return 0


def _commands(parser: argparse.ArgumentParser, prefix: tuple[str, ...]) -> Iterator[Command]:
    command = Command(prefix)
    subparsers: list[tuple[tuple[str, ...], argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                command.verbs[choice.dest] = choice.help or ""
                subparsers.append(((*prefix, choice.dest), action.choices[choice.dest]))
        elif action.option_strings:
            spellings = tuple(action.option_strings)
            command.options.append((spellings, action.help or "", action.nargs != 0))
            if action.choices:
                command.choices.update(dict.fromkeys(spellings, tuple(map(str, action.choices))))
        elif action.choices:
            command.verbs.update({str(choice): action.help or "" for choice in action.choices})
    yield command
    for path, subparser in subparsers:
        yield from _commands(subparser, path)


def _bash(commands: list[Command]) -> str:
    cases = []
    for command in commands:
        candidates = [*command.verbs, *(name for names, _, _ in command.options for name in names)]
        takes = " ".join(name for names, _, valued in command.options if valued for name in names)
        cases.append(f'    "{" ".join(command.words)}") words="{" ".join(candidates)}"; takes=" {takes} " ;;')
    values = [
        f'    "{" ".join(command.words)} {name}") words="{" ".join(choices)}" ;;'
        for command in commands
        for name, choices in command.choices.items()
    ]
    alternatives = "|".join(f'"{" ".join(command.words)}"' for command in commands if command.words)
    return _BASH.format(cases="\n".join(cases), values="\n".join(values) or "    -) ;;", known=alternatives)


_BASH = """\
# Completion of berth for bash: put it into ~/.local/share/bash-completion/completions/berth,
# or write into ~/.bashrc:  source <(berth completion bash)
_berth_words() {{
  case "$1" in
{cases}
  esac
}}
_berth_values() {{
  words=""
  case "$1" in
{values}
  esac
}}
_berth() {{
  local word path="" words="" takes="" previous="" index
  local current="${{COMP_WORDS[COMP_CWORD]}}"
  COMPREPLY=()
  _berth_words ""
  for ((index = 1; index < COMP_CWORD; index++)); do
    word="${{COMP_WORDS[index]}}"
    if [[ -n $previous ]]; then previous=""; continue; fi
    if [[ $takes == *" $word "* ]]; then previous="$word"; continue; fi
    case "${{path:+$path }}$word" in
      {known}) path="${{path:+$path }}$word"; _berth_words "$path" ;;
    esac
  done
  if [[ -n $previous ]]; then
    _berth_values "${{path:+$path }}$previous"
    if [[ -z $words ]]; then COMPREPLY=($(compgen -f -- "$current")); return; fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _berth berth
"""


def _zsh(commands: list[Command]) -> str:
    """Return the bash script with zsh's emulation of bash, so that both use one list of commands."""
    return (
        "#compdef berth\n# Completion of berth for zsh: write into ~/.zshrc, after compinit:"
        "  source <(berth completion zsh)\nautoload -U +X bashcompinit && bashcompinit\n" + _bash(commands)
    )


def _fish(commands: list[Command]) -> str:
    lines = [
        "# Completion of berth for fish: put it into ~/.config/fish/completions/berth.fish",
        "function __berth_at",
        "    set -l words (commandline -opc)",
        "    set -l path",
        "    for word in $words[2..]",
        "        string match -q -- '-*' $word; or set -a path $word",
        "    end",
        "    set -l count (count $argv)",
        "    test $count -eq 0; and test (count $path) -eq 0; and return",
        '    test $count -gt 0; and test (count $path) -ge $count; and test "$path[1..$count]" = "$argv"',
        "end",
        "complete -c berth -f",
    ]
    for command in commands:
        condition = f'-n "__berth_at {" ".join(command.words)}"'.replace(' "__berth_at "', " __berth_at")
        for verb, description in command.verbs.items():
            lines.append(f"complete -c berth {condition} -a {verb} -d {_quoted(description)}")
        for names, description, valued in command.options:
            spellings = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in names)
            choices = next((command.choices[name] for name in names if name in command.choices), ())
            value = f" -x -a {_quoted(' '.join(choices))}" if choices else " -r -F" if valued else ""
            lines.append(f"complete -c berth {condition} {spellings}{value} -d {_quoted(description)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
