"""Validates repository URLs, with reasons by form field."""

from __future__ import annotations

from typing import TypedDict

from portal.catalog.repositories.codes import RepositoryCode
from portal.common.reasons.reason import Reason
from provisioning import git_urls
from provisioning.git_urls import UrlProblem

MAX_URL = git_urls.MAX_URL
MAX_REF = git_urls.MAX_REF
_URL_CODES = {
    UrlProblem.EMPTY: RepositoryCode.URL_MISSING,
    UrlProblem.TOO_LONG: RepositoryCode.URL_TOO_LONG,
    UrlProblem.CHARACTERS: RepositoryCode.URL_CHARACTERS,
    UrlProblem.OPTION: RepositoryCode.URL_OPTION,
    UrlProblem.CREDENTIALS: RepositoryCode.URL_CREDENTIALS,
    UrlProblem.SCHEME: RepositoryCode.URL_SCHEME,
    UrlProblem.SHAPE: RepositoryCode.URL_SHAPE,
}


class Source(TypedDict):
    """A repository, its branch, tag or commit, and the name of the secret with its credentials."""

    url: str
    ref: str
    secret: str


def problems_of(url: str, ref: str = "", secret: str = "") -> dict[str, Reason]:
    """Return the problems by field (`url`, `ref`). An empty repository is valid."""
    problems: dict[str, Reason] = {}
    if not url and not (ref or secret):
        return problems
    url_parts = git_urls.parsed(url)
    if isinstance(url_parts, UrlProblem):
        problems["url"] = Reason(_URL_CODES[url_parts], {"most": MAX_URL})
    if git_urls.ref_problem(ref) is not None:
        problems["ref"] = Reason(RepositoryCode.REF_INVALID)
    return problems


def folder_of(url: str) -> str:
    """Return the folder name of a clone; empty for an invalid URL."""
    url_parts = git_urls.parsed(url)
    return "" if isinstance(url_parts, UrlProblem) else url_parts.folder


def host_of(url: str) -> str:
    """Return the host of a URL; empty for an invalid one."""
    url_parts = git_urls.parsed(url)
    return "" if isinstance(url_parts, UrlProblem) else url_parts.host
