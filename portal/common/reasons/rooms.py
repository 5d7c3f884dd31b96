"""Finds the modules `codes` and `wording` of all installed apps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from django.apps import apps

from portal.common.reasons.registry import registry

_PROJECT = "portal"


def register_codes() -> None:
    """Register the codes of all packages. Raises `DuplicateCode` if two have the same value."""
    for name in modules_named("codes"):
        for enumeration in enumerations_of(import_module(name)):
            registry.register(enumeration)


def enumerations_of(module: ModuleType) -> Iterator[type[StrEnum]]:
    """Yield the enumerations defined in `module` or, if it is a package, in its modules."""
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, StrEnum)
            and _is_of(value.__module__, module.__name__)
        ):
            yield value


@cache
def modules_named(name: str) -> tuple[str, ...]:
    """Return the modules or packages of this name, in the order of the installed apps."""
    return tuple(f"{package}.{name}" for package, names in _packages() if name in names)


@cache
def _packages() -> tuple[tuple[str, frozenset[str]], ...]:
    """Yield each package of the installed apps with the names of its modules and packages."""
    configs = [config for config in apps.get_app_configs() if _is_of(config.name, _PROJECT)]
    paths = {config.path for config in configs}
    return tuple(package for config in configs for package in _walk(config.name, config.path, paths))


def _walk(package: str, path: str, apps_at: set[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield `package` and its packages, except those that are apps, with their modules and packages."""
    folders = []
    names = set()
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                names.add(entry.name.removesuffix(".py"))
            elif entry.is_dir() and (Path(entry.path) / "__init__.py").exists():
                names.add(entry.name)
                folders.append(entry)
    yield package, frozenset(names)
    for folder in sorted(folders, key=lambda entry: entry.name):
        if folder.path not in apps_at:
            yield from _walk(f"{package}.{folder.name}", folder.path, apps_at)


def _is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
