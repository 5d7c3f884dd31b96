"""Translates conda's `environment.yml` to requirements of the package index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from portal.catalog.environments.codes import EnvironmentCode
from portal.common.reasons.reason import Reason

MAX_LENGTH = 64 * 1024
"""Maximum size of a file in bytes. `conda env export` writes a few thousand."""
MAX_SHOWN = 80
MAX_NAMED = 20
_IS_ONE = re.compile(r"^dependencies[ \t]*:", re.MULTILINE)
_SPEC = re.compile(r"(?:[^\s:]+::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*)(?P<rest>.*)", re.DOTALL)
_IGNORED = frozenset({"name", "channels", "prefix"})
_NO_REQUIREMENT = frozenset({"python", "pip", "nomkl"})
"""Names that need no line: the user selects Python, and pip is in every environment."""

RENAMED = {
    "brotli-python": "brotli",
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python-headless",
    "py-opencv": "opencv-python-headless",
    "py-xgboost": "xgboost",
    "psycopg2": "psycopg2-binary",
    "pytables": "tables",
    "python-graphviz": "graphviz",
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "seaborn-base": "seaborn",
    "tensorflow-base": "tensorflow",
    "tensorflow-gpu": "tensorflow",
}
"""Package index names of conda packages whose names differ there."""

_WITHOUT_WHEEL = frozenset(
    """
    binutils blas blosc boost boost-cpp bzip2 c-ares c-compiler ca-certificates cairo compilers cuda
    cudatoolkit cudnn curl cxx-compiler eigen expat ffmpeg fftw fontconfig fortran-compiler freetype gcc
    gdal geos gettext gfortran giflib git glib glpk gmp gnutls graphviz gsl gxx harfbuzz hdf5 icu
    jpeg jq julia krb5 lame ld_impl_linux-64 lerc llvm-openmp lz4-c make mesalib
    mpc mpfr mpich mro nccl ncurses netcdf nettle ninja-base nodejs nspr nss octave openblas
    openh264 openjdk openjpeg openmpi openssl pandoc pango parallel pcre pcre2 perl pixman pkg-config
    poppler postgresql proj pytorch-cuda pytorch-mutex qt qt-main r readline ruby rust samtools bwa
    bedtools snappy sqlite sysroot_linux-64 tesseract texlive-core tk unixodbc wget x264 xz yaml yarn
    zeromq zlib zstd
    """.split()  # noqa: SIM905 - as text it fits on a page
)
_WITHOUT_WHEEL_PREFIXES = ("_", "bioconductor-", "cuda-", "font-ttf-", "gst-", "lib", "r-", "xorg-")
_WITHOUT_WHEEL_SUFFIXES = ("_linux-64", "_linux-aarch64", "_osx-64", "_osx-arm64", "_win-64")
_PYTHON_LIBS = frozenset(
    """
    libclang libcst liblinear libpysal librosa librt libsass libtmux libtpu
    """.split()  # noqa: SIM905 - as text it fits on a page
)


class _LoaderWithoutAnchors(yaml.SafeLoader):
    """YAML loader that rejects anchors, so that a document cannot be larger than its text."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(problem="an anchor or alias", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True)
class CondaFile:
    """A translated file: requirements at their line numbers, the required Python, and all problems."""

    lines: tuple[str, ...] = ()
    python: SpecifierSet = field(default_factory=SpecifierSet)
    problems: tuple[Reason, ...] = ()


def is_environment_file(text: str) -> bool:
    """Return whether the text is an `environment.yml`: in pip's lists no line begins with `dependencies:`."""
    return _IS_ONE.search(text) is not None


def translate_conda_file(text: str) -> CondaFile:
    """Translate the conda and pip packages of a file. Ignores channels: the site sets the package index."""
    try:
        root = yaml.compose(text, Loader=_LoaderWithoutAnchors)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return _unreadable_file(
            mark.line + 1 if mark else 1, " ".join(str(error.problem or "not valid YAML").split())
        )
    except (yaml.YAMLError, RecursionError, ValueError):
        return _unreadable_file(1, "not valid YAML")
    if not isinstance(root, yaml.MappingNode):
        return _unreadable_file(1, "“dependencies” is missing")
    reader = _Reader()
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            reader.add_problem(key, "a key")
        elif key.value == "dependencies" and isinstance(value, yaml.SequenceNode):
            for item in value.value:
                reader.add_dependency(item)
        elif key.value not in _IGNORED:
            reader.add_problem(key, f"{key.value}:")
    return reader.result()


def _unreadable_file(line: int, problem: str) -> CondaFile:
    return CondaFile(problems=(_unreadable(line, problem),))


def _unreadable(line: int, problem: str) -> Reason:
    return Reason(EnvironmentCode.CONDA_FILE_NOT_READ, {"line": line, "text": problem[:MAX_SHOWN]})


@dataclass(slots=True)
class _Reader:
    lines: list[str] = field(default_factory=list)
    pythons: list[str] = field(default_factory=list)
    without_wheel: list[str] = field(default_factory=list)
    problems: list[Reason] = field(default_factory=list)

    def add_problem(self, node: yaml.Node, text: str) -> None:
        self.problems.append(_unreadable(node.start_mark.line + 1, text))

    def add_dependency(self, node: yaml.Node) -> None:
        if isinstance(node, yaml.ScalarNode):
            self._add_conda(node)
            return
        for line in _pip_lines(node):
            if line is None:
                self.add_problem(node, "dependencies:")
                return
            self._add_line(line, " ".join(str(line.value).split()))

    def _add_conda(self, node: yaml.ScalarNode) -> None:
        number = node.start_mark.line + 1
        spec = _SPEC.fullmatch(node.value.strip())
        if spec is not None and _lacks_wheel(spec["name"]):
            self.without_wheel.append(f"{spec['name']} ({number})")
            return
        requirement = _requirement(spec) if spec is not None else None
        if requirement is None:
            self.add_problem(node, node.value)
        elif requirement.name.lower() == "python":
            self.pythons.append(str(requirement.specifier))
        elif requirement.name.lower() not in _NO_REQUIREMENT:
            self._add_line(node, str(requirement))

    def _add_line(self, node: yaml.Node, text: str) -> None:
        """Add a requirement at its line number in the file, so that problems name that line."""
        self.lines += [""] * (node.start_mark.line - len(self.lines))
        self.lines.append(text)

    def result(self) -> CondaFile:
        if self.without_wheel:
            examples = self.without_wheel[:MAX_NAMED]
            more = len(self.without_wheel) - len(examples)
            self.problems.insert(
                0, Reason(EnvironmentCode.CONDA_WITHOUT_WHEEL, {"packages": examples, "more": more})
            )
        python = SpecifierSet(",".join(filter(None, self.pythons)))
        return CondaFile(tuple(self.lines), python, tuple(self.problems))


def _pip_lines(node: yaml.Node) -> Iterator[yaml.ScalarNode | None]:
    """Yield the lines of a `pip:` part; None for anything else."""
    if not isinstance(node, yaml.MappingNode):
        yield None
        return
    for key, value in node.value:
        if key.value != "pip" or not isinstance(value, yaml.SequenceNode):
            yield None
            return
        for item in value.value:
            yield item if isinstance(item, yaml.ScalarNode) else None


def _lacks_wheel(name: str) -> bool:
    """Return whether a conda package has no Python package: a program, compiler or system library."""
    name = name.lower()
    if name in _PYTHON_LIBS or name in RENAMED:
        return False
    return (
        name in _WITHOUT_WHEEL
        or name.startswith(_WITHOUT_WHEEL_PREFIXES)
        or name.endswith(_WITHOUT_WHEEL_SUFFIXES)
    )


def pip_form(text: str) -> str:
    """Return a conda spec such as `numpy=1.26.4=py311_0` in pip's form; empty if pip has no equivalent."""
    spec = _SPEC.fullmatch(text.strip())
    requirement = _requirement(spec) if spec is not None else None
    return str(requirement) if requirement is not None else ""


def _requirement(spec: re.Match[str]) -> Requirement | None:
    """Return pip's requirement for a conda spec, or None without an equivalent.

    In conda `=1.26` means `1.26.*`; a version with a build is exact.
    """
    name, rest = spec["name"], spec["rest"].strip()
    python = name.lower() == "python"
    if len(rest) > MAX_SHOWN:
        return None
    if rest.startswith("=") and not rest.startswith("=="):
        rest, _, build = rest[1:].strip().partition("=")
        rest = _exact_requirement(rest, exact=bool(build), python=python)
    elif rest.startswith("=="):
        rest = _exact_requirement(rest[2:].strip().partition("=")[0], exact=True, python=python)
    elif rest[:1].isdigit():
        version, _, build = rest.partition(" ")
        rest = _exact_requirement(version, exact=True, python=python)
    try:
        requirement = Requirement(f"{RENAMED.get(name.lower(), name)}{rest}")
    except (InvalidRequirement, RecursionError):
        return None
    return requirement if requirement.url is None and requirement.marker is None else None


def _exact_requirement(version: str, *, exact: bool, python: bool) -> str:
    version = version.strip()
    numbers = version.removesuffix(".*").split(".")
    if python:
        return f"=={'.'.join(numbers[:2])}.*"
    if version.endswith(".*"):
        return f"=={version}"
    return f"=={version}" if exact or len(numbers) > 2 else f"=={version}.*"
