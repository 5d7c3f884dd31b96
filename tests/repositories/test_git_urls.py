"""Valid addresses and names: none that Git reads as an option, a file, a helper or a password."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from portal.catalog.repositories.codes import RepositoryCode
from portal.catalog.repositories.rules import problems_of
from portal.common.reasons.wording import message_of, next_action_of
from provisioning.git_urls import MAX_URL, GitUrl, UrlProblem, parsed, ref_problem

TAKEN = [
    ("https://github.com/berth/berth.git", "https", "github.com", "berth"),
    ("https://GitLab.example:8443/a/b/c", "https", "gitlab.example", "c"),
    ("https://host/a%20b/c/", "https", "host", "c"),
    ("ssh://git@host:2222/a/b.git", "ssh", "host", "b"),
    ("ssh://host/b", "ssh", "host", "b"),
    ("git@github.com:berth/berth.git", "ssh", "github.com", "berth"),
    ("git@host:/srv/git/a.git", "ssh", "host", "a"),
    ("git@host:~ada/a.git", "ssh", "host", "a"),
]
REFUSED = [
    ("", UrlProblem.EMPTY),
    ("https://h/" + "a" * MAX_URL, UrlProblem.TOO_LONG),
    ("--upload-pack=touch /tmp/x", UrlProblem.OPTION),
    ("-oProxyCommand=x@h:p", UrlProblem.OPTION),
    ("ext::sh", UrlProblem.SCHEME),
    ("ext::sh -c id", UrlProblem.CHARACTERS),
    ("fd::17/foo", UrlProblem.SCHEME),
    ("testgit::https://h/a", UrlProblem.SCHEME),
    ("file:///etc/passwd", UrlProblem.SCHEME),
    ("FILE:///etc", UrlProblem.SCHEME),
    ("HTTPS://h/a", UrlProblem.SCHEME),
    ("/srv/git/a", UrlProblem.SCHEME),
    ("../a", UrlProblem.SCHEME),
    ("http://h/a", UrlProblem.SCHEME),
    ("git://h/a", UrlProblem.SCHEME),
    ("ftp://h/a", UrlProblem.SCHEME),
    ("h:a", UrlProblem.SCHEME),
    ("https://user@h/a", UrlProblem.CREDENTIALS),
    ("https://user:token@h/a", UrlProblem.CREDENTIALS),
    ("https://@h/a", UrlProblem.CREDENTIALS),
    ("ssh://git:word@h/a", UrlProblem.CREDENTIALS),
    ("https://h/a\n", UrlProblem.CHARACTERS),
    ("https://h/a\nhost=evil", UrlProblem.CHARACTERS),
    ("https://h/a%0ahost=evil", UrlProblem.CHARACTERS),
    ("https://h/a%0D", UrlProblem.CHARACTERS),
    ("https://h/%2e%2e/a", UrlProblem.CHARACTERS),
    ("https://h/a b", UrlProblem.CHARACTERS),
    ("https://h/\N{CYRILLIC SMALL LETTER A}", UrlProblem.CHARACTERS),
    ("https://h/a\0", UrlProblem.CHARACTERS),
    ("https://h/../a", UrlProblem.SHAPE),
    ("https://h//a", UrlProblem.SHAPE),
    ("https://h/.git", UrlProblem.SHAPE),
    ("https://h/..", UrlProblem.SHAPE),
    ("https://h/.ssh", UrlProblem.SHAPE),
    ("https://h/-a", UrlProblem.SHAPE),
    ("https://h/", UrlProblem.SHAPE),
    ("https://h", UrlProblem.SHAPE),
    ("https://h/a?x=1", UrlProblem.SHAPE),
    ("https://h/a#x", UrlProblem.SHAPE),
    ("https://h:0/a", UrlProblem.SHAPE),
    ("https://h:65536/a", UrlProblem.SHAPE),
    ("https://-h/a", UrlProblem.SHAPE),
    ("ssh://-oProxyCommand=x/a", UrlProblem.SHAPE),
    ("git@-oProxyCommand=x:a", UrlProblem.SHAPE),
    ("git@h:-a", UrlProblem.SHAPE),
    ("-git@h:a", UrlProblem.OPTION),
    ("https://[::1]/a", UrlProblem.SHAPE),
    ("https://h/a;touch", UrlProblem.SHAPE),
    ("https://h/$(id)", UrlProblem.SHAPE),
    ("git@h:a'b", UrlProblem.SHAPE),
]  # fmt: skip


@pytest.mark.parametrize(("url", "scheme", "host", "folder"), TAKEN)
def test_valid_address_is_accepted(url: str, scheme: str, host: str, folder: str) -> None:
    found = parsed(url)
    assert isinstance(found, GitUrl)
    assert (found.scheme, found.host, found.folder, found.url) == (scheme, host, folder, url)
    assert problems_of(url) == {}


@pytest.mark.parametrize(("url", "problem"), REFUSED)
def test_invalid_address_is_refused_with_a_message(url: str, problem: UrlProblem) -> None:
    assert parsed(url) is problem
    if url:
        reason = problems_of(url)["url"]
        assert message_of(reason) and (next_action_of(reason) or problem is UrlProblem.TOO_LONG)


LETTERS = string.ascii_letters + string.digits + string.punctuation + " \t\n\r\0é"
SIGNS = st.text(LETTERS, max_size=60)
BEGINNINGS = st.sampled_from(
    ["", "https://", "ssh://", "git@h:", "https://h/", "ext::", "file://", "-", "git@"]
)


@given(BEGINNINGS, SIGNS)
@example("https://", "h\\@evil/a")
def test_accepted_addresses_are_unambiguous(beginning: str, rest: str) -> None:
    url = beginning + rest
    found = parsed(url)
    if isinstance(found, UrlProblem):
        return
    assert not re.search(r"[\s\0-\x20\x7f-\uffff'\"`$;&|<>()\\?#]", url)
    assert not url.startswith("-") and "::" not in url.partition("/")[0]
    assert url.startswith(("https://", "ssh://")) or re.match(r"[A-Za-z0-9_][\w.-]*@[A-Za-z0-9]", url)
    assert (not found.host.startswith("-") and "@" not in url.partition("://")[2].partition("/")[0]) or (
        found.scheme == "ssh"
    )
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]*", found.folder)
    assert found.folder not in (".", "..", ".git")


@pytest.mark.parametrize("ref", ["", "main", "feature/x-1", "v1.2.3", "deadbeef", "release@2", "a+b"])
def test_valid_revision_name_is_accepted(ref: str) -> None:
    assert ref_problem(ref) is None


@pytest.mark.parametrize(
    "ref",
    ["-f", "--upload-pack=x", "a..b", "a b", "a\nb", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "@{u}",
     "a@{1}", ".a", "a/.b", "a.lock", "a/", "/a", "a//b", "a.", "é", "a" * 201],
)  # fmt: skip
def test_invalid_revision_name_is_refused(ref: str) -> None:
    assert ref_problem(ref) is not None
    assert problems_of("https://h/a", ref)["ref"].code is RepositoryCode.REF_INVALID


def test_a_branch_without_a_repository_is_refused() -> None:
    assert problems_of("", "main")["url"].code is RepositoryCode.URL_MISSING
    assert problems_of("", "", "TOKEN")["url"].code is RepositoryCode.URL_MISSING
    assert problems_of("") == {}
