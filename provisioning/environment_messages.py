"""What the two planes tell each other about building and removing software environments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from provisioning.types import (
    EnvironmentDigest,
    EnvironmentName,
    Failure,
    LargeMib,
    Name,
    Program,
    Whole,
    Word,
)

MAX_SOURCE = 256 * 1024
MAX_LOCK = 2 * 1024 * 1024
MAX_LOG = 64 * 1024
MAX_PACKAGES = 5000
MAX_LONG_S = 24 * 3600

Source = Annotated[str, Meta(max_length=MAX_SOURCE)]
Lock = Annotated[str, Meta(max_length=MAX_LOCK)]
PythonVersion = Annotated[str, Meta(pattern=r"^3\.[0-9]{1,2}$")]


class SourceKind(StrEnum):
    """What the source of an environment is."""

    PACKAGES = "packages"
    """Names, one on each line, with versions where wanted."""

    REQUIREMENTS = "requirements"
    """A `requirements.txt`."""

    PYPROJECT = "pyproject"
    """A `pyproject.toml`: what its project depends on."""

    LOCK = "lock"
    """A requirements file in which every package has a version and hashes."""

    FOLDER = "folder"
    """The path of a folder that nodes have already: it is looked at, and never changed."""


class BuildStage(StrEnum):
    """How far a build is."""

    WAITING = "waiting"
    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    INSTALLING = "installing"
    COMPILING = "compiling"
    CHECKING = "checking"


class BuildFailure(StrEnum):
    """Why a build came to nothing: the `code` of its failure."""

    NO_SUCH_FOLDER = "no_such_folder"
    NO_SUCH_PACKAGE = "no_such_package"
    RESOLUTION_FAILED = "resolution_failed"
    HASH_MISMATCH = "hash_mismatch"
    INDEX_UNREACHABLE = "index_unreachable"
    DISK_FULL = "disk_full"
    TOO_LARGE = "too_large"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    NO_PYTHON = "no_python"
    UV_MISSING = "uv_missing"
    BUILD_FAILED = "build_failed"
    UNFORESEEN = "unforeseen"


@dataclass(frozen=True, slots=True)
class EnvironmentBuild:
    """Build an environment, or find it built. It begins before `expires_at` (unix time) or not at all.

    Without a `lock` the source is resolved first, and the lock comes back with the answer. With `digest` the
    build is refused unless that is the digest of the lock for this Python. `deadline_s` bounds the whole from
    its beginning, waiting for another build on the node included; `disk_limit_mib` what the environment may
    take. `build` and `lease` come back with every answer.
    """

    build: Name
    lease: Name
    python: PythonVersion
    source_kind: SourceKind
    expires_at: float
    deadline_s: Annotated[int, Meta(ge=1, le=MAX_LONG_S)]
    disk_limit_mib: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    digest: EnvironmentDigest = ""
    source: Source = ""
    lock: Lock = ""


@dataclass(frozen=True, slots=True)
class EnvironmentCancel:
    """End the build that goes on under this lease; nothing happens where there is none."""

    build: Name
    lease: Name


@dataclass(frozen=True, slots=True)
class EnvironmentRemoval:
    """Remove an environment from the node, unless something there uses it."""

    digest: EnvironmentDigest


@dataclass(frozen=True, slots=True)
class PackagesOf:
    """Asks what a user has installed on top of an environment, in the home of a team and owner."""

    team: Name
    owner: Name
    environment: EnvironmentDigest = ""
    environment_name: EnvironmentName = ""


@dataclass(frozen=True, slots=True)
class EnvironmentProgress:
    """How far a build is: `done` of `total` packages in this stage (0 of 0: not known).

    `log` is what has been written since `log_offset` characters of the whole.
    """

    build: Name
    lease: Name
    stage: BuildStage
    done: Whole = 0
    total: Whole = 0
    log_offset: Whole = 0
    log: Annotated[str, Meta(max_length=MAX_LOG)] = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that is in an environment, with what its files take."""

    name: Annotated[str, Meta(max_length=200)]
    version: Annotated[str, Meta(max_length=100)]
    size_kib: LargeMib = 0


@dataclass(frozen=True, slots=True)
class FailedLine:
    """Where a build went wrong: a line of its source (from 1; 0: not known), and the line of the log."""

    source_line: Whole = 0
    log_line: Annotated[str, Meta(max_length=2000)] = ""


@dataclass(frozen=True, slots=True)
class EnvironmentBuilt:
    """How a build ended: the environment as it is on the node, or a failure (`BuildFailure`).

    `programs` are the names in its `bin` that templates may start; `cuda` is the CUDA that its packages bring
    along, such as `12.4` or `12`, empty for none. With a failure the rest may be empty. `log` is the end of
    the log, from `log_offset` characters on: the last progress may arrive after this, which is too late.
    """

    build: Name
    lease: Name
    digest: EnvironmentDigest = ""
    lock: Lock = ""
    packages: Annotated[tuple[Package, ...], Meta(max_length=MAX_PACKAGES)] = ()
    size_mib: LargeMib = 0
    programs: Annotated[tuple[Program, ...], Meta(max_length=1024)] = ()
    python_version: Word = ""
    cuda: Word = ""
    failure: Failure | None = None
    failed_line: FailedLine | None = None
    log_offset: Whole = 0
    log: Annotated[str, Meta(max_length=MAX_LOG)] = ""
