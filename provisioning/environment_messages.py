"""Messages between the two planes about building and removing software environments."""

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
    """Format of an environment's source."""

    PACKAGES = "packages"
    """Package names, one per line, with optional versions."""

    REQUIREMENTS = "requirements"

    PYPROJECT = "pyproject"
    """The dependencies of a `pyproject.toml`."""

    LOCK = "lock"
    """A requirements file with versions and hashes for every package."""

    FOLDER = "folder"
    """Path of an existing folder on the nodes. It is inspected, never changed."""


class BuildStage(StrEnum):
    """Stage of a build."""

    WAITING = "waiting"
    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    INSTALLING = "installing"
    COMPILING = "compiling"
    CHECKING = "checking"


class BuildFailure(StrEnum):
    """Reason why a build failed: the `code` of its failure."""

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
    """A request to build an environment unless it exists. Not started after `expires_at` (Unix time).

    Without a `lock` the source is resolved first; the answer contains the lock. With `digest`, the build is
    rejected unless it is the digest of the lock for this Python. `deadline_s` limits the whole build,
    including waiting for another build on the node; `disk_limit_mib` limits the size of the environment.
    Every answer repeats `build` and `lease`.
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
    """A request to cancel the build with this lease; ignored if there is none."""

    build: Name
    lease: Name


@dataclass(frozen=True, slots=True)
class EnvironmentRemoval:
    """A request to remove an environment from the node unless it is in use there."""

    digest: EnvironmentDigest


@dataclass(frozen=True, slots=True)
class OwnPackagesRequest:
    """A request for the packages that a user installed in a home, on top of an environment."""

    team: Name
    owner: Name
    environment: EnvironmentDigest = ""
    environment_name: EnvironmentName = ""


@dataclass(frozen=True, slots=True)
class EnvironmentProgress:
    """Progress of a build: `done` of `total` packages in this stage (0 of 0: unknown).

    `log` is the output from character `log_offset` of the whole log.
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
    """A package of an environment, with the size of its files."""

    name: Annotated[str, Meta(max_length=200)]
    version: Annotated[str, Meta(max_length=100)]
    size_kib: LargeMib = 0


@dataclass(frozen=True, slots=True)
class FailedLine:
    """Cause of a failed build: a line of its source (from 1; 0: unknown), and a line of the log."""

    source_line: Whole = 0
    log_line: Annotated[str, Meta(max_length=2000)] = ""


@dataclass(frozen=True, slots=True)
class EnvironmentBuilt:
    """Result of a build: the environment on the node, or a failure (`BuildFailure`).

    `programs` are the names in its `bin` that templates may start; `cuda` is the CUDA version of its
    packages, such as `12.4` or `12`, empty for none. With a failure the other fields may be empty. `log` is
    the end of the log from character `log_offset`, because the last progress may arrive after this message.
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
