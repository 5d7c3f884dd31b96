"""Attack: text on which a regular expression takes exponential time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from portal.catalog import rules
from portal.people.identity.patterns import is_slow_pattern
from portal.people.service_accounts.exchange.conditions import Condition, check
from tests.security.patterns import MAX_CPU_S, ROOT


def _lines(*arguments: str) -> list[str]:
    """Return the output of the child process, and the pattern at which it was killed."""
    program = [sys.executable, "-m", "tests.security.patterns", *arguments]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=10 * MAX_CPU_S)
    lines = ended.stdout.splitlines()
    return lines if ended.returncode == 0 else [*lines, "ended at", *ended.stderr.splitlines()[-5:]]


@pytest.mark.parametrize(
    "every",
    [pytest.param(1, marks=pytest.mark.thorough("180 regular expressions on 20,000 texts")), 6],
)
@pytest.mark.slow("runs many regular expressions on many texts")
def test_every_pattern_runs_in_linear_time(every):
    lines = _lines("--every", str(every))
    assert len(lines) == 1, lines
    assert int(lines[0].split()[0]) > 150


@pytest.mark.parametrize("pattern", [r"(a|aa)+b", r"a*a*b", r"--?[\w.-]*token[\w.-]*=", r"\s+$"])
def test_nonlinear_pattern_is_detected(pattern):
    lines = _lines("--", pattern)
    assert "* n" in lines[0] or lines[0] == "ended at"


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+", "(a|aa)*b", "(.*)(.*)(.*)(.*)x", "(?:-[a-z]+)*x", "(a?){30}", "((ab*){2}){9,}", "(?=(a+)+)b"],
)
def test_slow_patterns_in_the_configuration_are_refused(pattern):
    assert is_slow_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"([^@]+)@example\.org",
        "gpu-team-(?P<team>[a-z0-9-]+)",
        r"(?:dev|ops)-(.+)-(.+)",
        "([0-9a-f]{2}){6}",
        ".*",
    ],
)
def test_usual_patterns_of_the_configuration_are_accepted(pattern):
    assert not is_slow_pattern(pattern)


@pytest.mark.parametrize(
    ("glob", "text", "holds"),
    [
        ("*", "", True), ("*", "a/b", False), ("**", "a/b\n", True), ("***", "a/b", True), ("a*", "a", True),
        ("a*c/**d", "abc/x/yd", True), ("a*c/**d", "ab/c/d", False), ("?", "/", False), ("?", "", False),
        ("??", "ab", True), ("*?", "a", True), ("*?", "", False), ("**/x", "/x", True), ("**/x", "x", False),
        ("a.c", "abc", False), ("a[b]", "a[b]", True), ("*a*b", "xaxxb", True), ("*a*b", "xaxxbc", False),
        ("**?", "/", False), ("**?", "/a", True), ("ab", "ab", True), ("ab", "abc", False),
        ("é*", "éa", True),
    ],
)  # fmt: skip
def test_globs_match_as_documented(glob, text, holds):
    assert check([Condition("sub", "glob", glob)], {"sub": text})[0].holds is holds


@pytest.mark.parametrize(
    ("text", "likely"),
    [
        ("--api-key=abcd", True), ("-token=abcd", True), ("--PASSWORD=abcd", True),
        ("--x.secret-y=abcd", True), ("--token={token}", False), ("--token=abc", False),
        ("token=abcd", False), ("--token =abcd", False), ("a=b--token=abcd", True),
        ("--name=abcd --apikey=abcd", True), ("x-=token=abcd", False),
        ("https://a:b@host", True), ("HTTPs://a:b@host", True), ("https://a@host", False),
        ("://a:b@host", False),
    ],
)  # fmt: skip
def test_probable_secrets_are_found_in_arguments(text, likely):
    assert (rules._has_secret_option(text) or rules._URL_PASSWORD.search(text) is not None) is likely
