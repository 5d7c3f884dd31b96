"""What may be written as the address of a repository, as reasons at the fields of a form."""

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
    """A repository, a branch, tag or commit of it, and the name of the secret that opens it."""

    url: str
    ref: str
    secret: str


def problems_of(url: str, ref: str = "", secret: str = "") -> dict[str, Reason]:
    """What is wrong, by field (`url`, `ref`); nothing is wrong with an empty address that stands alone."""
    found: dict[str, Reason] = {}
    if not url and not (ref or secret):
        return found
    read = git_urls.parsed(url)
    if isinstance(read, UrlProblem):
        found["url"] = Reason(_URL_CODES[read], {"most": MAX_URL})
    if git_urls.ref_problem(ref) is not None:
        found["ref"] = Reason(RepositoryCode.REF_INVALID)
    return found


def folder_of(url: str) -> str:
    """What a clone of the address is called; empty for an address that is not taken."""
    read = git_urls.parsed(url)
    return "" if isinstance(read, UrlProblem) else read.folder


def host_of(url: str) -> str:
    """The host of an address, empty for one that is not taken."""
    read = git_urls.parsed(url)
    return "" if isinstance(read, UrlProblem) else read.host
