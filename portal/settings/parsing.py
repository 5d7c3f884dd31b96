"""Reads settings from the environment and from files."""

from __future__ import annotations

import os

import environ
from django.core.exceptions import ImproperlyConfigured

from provisioning.service.environ import home_folder

env = environ.Env()


def ports(variable: str, default: str) -> range:
    """Parse a port, or a range `first-last` with both ends included. Raises `ImproperlyConfigured`."""
    first, dash, last = env.str(variable, default=default).partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise ImproperlyConfigured(f"{variable} must be a range of ports, such as {default}.")
    numbers = range(int(first), int(last or first) + 1)
    if not numbers or not 1024 <= numbers[0] <= numbers[-1] <= 65535:
        raise ImproperlyConfigured(f"{variable} must be between 1024 and 65535, with the lower port first.")
    return numbers


def hours(variable: str) -> frozenset[int]:
    """Parse hours of the day, written as `22-4`: the first inclusive, the last exclusive. Empty: none.

    Raises `ImproperlyConfigured`.
    """
    text = env.str(variable, default="").strip()
    if not text:
        return frozenset()
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) < 24 and int(last) <= 24):
        raise ImproperlyConfigured(f"{variable} must be a range of hours of the day in UTC, such as 22-4.")
    count = (int(last) - int(first)) % 24 or 24
    return frozenset((int(first) + hour) % 24 for hour in range(count))


def amounts(variable: str) -> dict[str, int]:
    """Parse named whole numbers, written as `gpu=4,gpu_hours=500`. Raises `ImproperlyConfigured`."""
    pairs = [pair.split("=") for pair in env.list(variable, default=[]) if pair.strip()]
    try:
        return {name.strip(): int(number) for name, number in pairs}
    except ValueError as error:
        raise ImproperlyConfigured(
            f"{variable} must have whole numbers by resource, such as gpu=4,gpu_hours=500."
        ) from error


def secret(variable: str, file_name: str) -> str:
    """Return a secret from the environment, else from the file that `make up` writes, else an empty string.

    Raises `ImproperlyConfigured` if the file cannot be read.
    """
    value = env.str(variable, default="")
    if value:
        return value
    path = home_folder(os.environ) / "secrets" / file_name
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ImproperlyConfigured(
            f"{path} cannot be read ({error.strerror}): make it readable or set {variable}."
        ) from error
