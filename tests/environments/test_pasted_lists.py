"""Package lists of other tools: accepted, translated, or rejected with a replacement."""

from __future__ import annotations

import codecs
import contextlib
import time

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from hypothesis import example, given, settings
from hypothesis import strategies as st

from portal.catalog.environments import sources
from portal.catalog.environments.models import Environment, SourceKind
from portal.catalog.environments.source_text import decoded, normalize_text
from portal.common.errors import InvalidInput
from tests.environments.helpers import environment, version_of

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
HASH = " --hash=sha256:" + "a" * 64
CONDA = """\
name: vision
channels:
  - conda-forge
dependencies:
  - python=3.11
  - numpy=1.26.4=py311h64a7726_0
  - conda-forge::scipy=1.13
  - pandas>=2.2,<3
  - pytorch
  - pip
  - pip:
      - einops==0.8.0
      - timm
"""


def messages_about(text: str, kind: str = "requirements", python: str = "") -> list[str]:
    """The messages about a rejected source: error and next action."""
    with pytest.raises(InvalidInput) as refused:
        sources.validate_source(kind, text, python)
    return refused.value.field_errors["source"]


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + b"numpy==1.26.4\n",
        codecs.BOM_UTF16_LE + "numpy==1.26.4\r\n".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "numpy==1.26.4\r\n".encode("utf-16-be"),
        codecs.BOM_UTF32_LE + "numpy==1.26.4\n".encode("utf-32-le"),
        "numpy==1.26.4\n".encode("utf-16-le"),
        "\u00a0numpy\u00a0==\u202f1.26.4\u200b".encode(),
        b"numpy==1.26.4  # caf\xe9",
    ],
)
def test_files_are_read_in_encodings_of_editors_and_shells(data, client, team, alice, local_pool, sent):
    client.force_login(alice)
    fields = {"name": "Tools", "team": team.slug, "source_kind": "requirements", "python": "3.12"}
    upload = SimpleUploadedFile("requirements.txt", data)
    client.post("/environments/new/", {**fields, "source": "", "file": upload})
    version = version_of(Environment.objects.get(slug="tools"))
    assert sources.lines_in(version.source_kind, version.source)[0].replace(" ", "") == "numpy==1.26.4"


@pytest.mark.parametrize("kind", ["packages", "requirements", "lock"])
def test_hashes_are_parsed(kind):
    text = f"numpy==1.26.4{HASH}\npandas==2.2.0 \\\n   {HASH.replace('=', ' ', 1)}\n"
    taken, stored = sources.validate_source(kind, text)
    assert taken == SourceKind.LOCK
    assert stored.count(" --hash=sha256:") == 2
    assert sources.validate_source(kind, f"numpy{HASH}\npandas")[0] == SourceKind.REQUIREMENTS


@pytest.mark.parametrize(
    ("line", "happened", "next_step"),
    [
        (
            "numpy @ file:///croot/numpy_and_numpy_base_1708/work",
            "Line 2 installs from a file or folder: numpy @ file:///croot/numpy_and_numpy_base_1708/work.",
            "Write numpy. “pip list --format=freeze” prints the whole list in this form.",
        ),
        (
            "--extra-index-url https://ada:secret@index.example/simple",
            "Line 2 sets a package index: --extra-index-url https://…@index.example/simple.",
            "Delete the line. Ask an operator to add this index to BERTH_NODE_PACKAGE_INDEX on the nodes.",
        ),
        (
            "-r base.txt",
            "Line 2 refers to another file: -r base.txt.",
            "Paste the lines of that file instead.",
        ),
        (
            "-rbase.txt",
            "Line 2 refers to another file: -rbase.txt.",
            "Paste the lines of that file instead.",
        ),
        (
            "timm @ git+https://github.com/x/timm",
            "Line 2 installs from a URL: timm @ git+https://github.com/x/timm.",
            "Write the name and version from the package index, such as timm.",
        ),
        (
            "numpy=1.26.4=py311h64a7726_0",
            "Line 2 is not in the format of pip: numpy=1.26.4=py311h64a7726_0.",
            "Write numpy==1.26.4.",
        ),
        (
            "numpy      1.26.4",
            "Line 2 is not in the format of pip: numpy      1.26.4.",
            "Write numpy==1.26.4.",
        ),
        (
            "numpy==1.26.4 --no-binary :all:",
            "Line 2 has a pip option: numpy==1.26.4 --no-binary :all:.",
            "Delete the option.",
        ),
    ],
)
def test_line_of_another_tool_is_rejected_with_a_replacement(line, happened, next_step):
    assert messages_about(f"pandas\n{line}\n") == [f"{happened} {next_step}"]


def test_environment_yml_is_translated_with_its_python(alice, team, local_pool, sent):
    made = environment(source=CONDA, python="")
    version = version_of(made)
    assert (version.source_kind, version.python) == (SourceKind.REQUIREMENTS, "3.11")
    assert version.source.split() == [
        "numpy==1.26.4",
        "scipy==1.13.*",
        *("pandas<3,>=2.2", "torch", "einops==0.8.0", "timm"),
    ]


def test_conda_packages_without_a_wheel_are_reported_together():
    text = CONDA + "  - ffmpeg=6\n  - r-base\n  - _libgcc_mutex=0.1=main\n  - librosa\n"
    assert messages_about(text) == [
        "These conda packages have no wheel on the package index (line numbers in parentheses): "
        "ffmpeg (14), r-base (15), _libgcc_mutex (16). "
        "Delete these lines: wheels contain their libraries. Ask an operator for programs on the nodes."
    ]


@pytest.mark.parametrize(
    ("text", "happened"),
    [
        (
            "dependencies:\n  - numpy\n  - pip:\n    - -e .\n",
            "Line 4 installs from a file or folder: -e ..",
        ),
        (
            "dependencies: [numpy]\nvariables:\n  A: b\n",
            "Line 2 of the environment.yml is not supported: variables:.",
        ),
        (
            "dependencies: &a [numpy, *a]\n",
            "Line 1 of the environment.yml is not supported: an anchor or alias.",
        ),
        (
            "dependencies:\n  - numpy[version='>1']\n",
            "Line 2 of the environment.yml is not supported: numpy[version='>1'].",
        ),
        (
            "dependencies: " + "[" * 5000,
            "Line 1 of the environment.yml is not supported: not valid YAML.",
        ),
    ],
)
def test_errors_in_environment_yml_name_the_line(text, happened):
    assert messages_about(text)[0].startswith(happened)


def test_another_python_version_than_in_the_file_is_reported():
    assert messages_about(CONDA, "packages", "3.12") == [
        "The environment.yml needs Python ==3.11.*, but Python 3.12 was chosen. "
        "Choose another Python version, or delete “python” from the list."
    ]
    assert sources.validate_source("packages", CONDA, "3.11")[0] == SourceKind.REQUIREMENTS


def test_nested_parentheses_are_an_invalid_line():
    assert messages_about("numpy; " + "(" * 5000)[0].startswith("Line 1 is not a valid package requirement")
    assert messages_about("[project]\ndependencies = ['numpy; " + "(" * 5000 + "']", "pyproject")


PIECES = st.sampled_from(
    [
        *(
            "numpy",
            "==1.26.4",
            "=1",
            "=py_0",
            "@ ",
            "file:///x",
            "git+https://h/x",
            HASH,
            "--hash ",
            "\\",
            "\n",
        ),
        *(
            "\r",
            "\u2028",
            "\x85",
            "\x0c",
            "\u00a0",
            "\ufeff",
            "#",
            ";",
            "(",
            "[",
            "]",
            "-r ",
            "--index-url=h",
        ),
        *(
            "dependencies:",
            "\n  - ",
            "pip:",
            "::",
            "python=3",
            "&a ",
            "*a",
            "npm:code-server",
            "\0",
            "é",
            " ",
        ),
    ]
)
LISTS = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join))


@pytest.mark.thorough("the cases of this file have the same lines")
@settings(max_examples=3000, deadline=None)
@given(st.sampled_from(["packages", "requirements", "lock", "pyproject"]), LISTS)
@example("packages", CONDA)
def test_arbitrary_lists_are_accepted_for_the_index_or_rejected_with_reasons(kind, text):
    try:
        taken, stored = sources.validate_source(kind, text)
    except InvalidInput as refused:
        assert all(refused.field_errors["source"])
        return
    assert sources.validate_source(taken, stored) == (taken, stored)
    assert all(not line.startswith("-") and " @ " not in line for line in sources.lines_in(taken, stored))
    assert sources.package_names(taken, stored)


@pytest.mark.thorough("the cases of this file have the same lines")
@settings(max_examples=2000, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]))
def test_arbitrary_bytes_are_decoded(data, encoding):
    assert isinstance(normalize_text(decoded(data)), str)
    text = "numpy==1.26.4\n" * (1 + len(data))
    assert decoded(text.encode(encoding)) == text


@pytest.mark.thorough("measures processor time")
@pytest.mark.parametrize(
    "piece", ["(", "[", "=", "a ", "a@", "//", "a::", "--hash ", "- a\n", "\\\n", ",>=1", "-"]
)
def test_parsing_time_grows_linearly(piece):
    def cost_s(length: int) -> float:
        began = time.process_time()
        for text in (piece * length, "numpy" + piece * length, "dependencies:\n" + piece * length):
            with contextlib.suppress(InvalidInput):
                sources.validate_source("requirements", text)
        return time.process_time() - began

    cost_s(100)
    assert cost_s(16_000) < 10 * max(cost_s(4_000), 0.02)
