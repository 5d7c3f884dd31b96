"""The digest of an environment: equal content has equal digests, regardless of formatting."""

from __future__ import annotations

import pytest

from provisioning.environments.content import digest_of, is_digest, requirements_of

LOCK = """\
# This file was made by a resolver.
numpy==2.2.0 \\
    --hash=sha256:bb \\
    --hash=sha256:aa
    # via pandas
pandas==2.3.0 ; python_version >= "3.11" \\
    --hash=sha256:cc
"""


@pytest.mark.parametrize(
    "same",
    [
        LOCK.replace("\n", "\r\n"),
        "\n\n" + LOCK.replace("    # via pandas\n", "") + "\n",
        'pandas==2.3.0 ; python_version >= "3.11" --hash=sha256:cc\n'
        "numpy==2.2.0 --hash=sha256:aa --hash=sha256:bb",
        LOCK.replace("numpy==", "NumPy==").replace("pandas==", "PANDAS=="),
    ],
)
def test_equivalent_locks_have_equal_digests(same: str) -> None:
    assert digest_of(same, "3.12") == digest_of(LOCK, "3.12")


@pytest.mark.parametrize(
    "other",
    [
        LOCK.replace("2.2.0", "2.2.1"),
        LOCK.replace("sha256:aa", "sha256:ab"),
        LOCK.replace("3.11", "3.10"),
        LOCK.split("pandas==")[0],
        LOCK + "--pre\n",
    ],
)
def test_different_locks_have_different_digests(other: str) -> None:
    assert digest_of(other, "3.12") != digest_of(LOCK, "3.12")


def test_python_version_changes_the_digest() -> None:
    assert digest_of(LOCK, "3.12") != digest_of(LOCK, "3.13")


def test_digest_is_stable_across_machines_and_releases() -> None:
    assert digest_of(LOCK, "3.12") == "dd3a9f902cff9de43a567fc5cb192c95"


def test_digest_is_safe_in_a_path() -> None:
    assert is_digest(digest_of("", "3.12"))
    for wrong in ("", "a" * 31, "a" * 33, "A" * 32, "../" + "a" * 29, "a" * 32 + "\n"):
        assert not is_digest(wrong)


def test_hash_sign_within_a_word_does_not_start_a_comment() -> None:
    assert requirements_of("a @ https://example.test/a.whl#sha256=aa  # why") == [
        "a @ https://example.test/a.whl#sha256=aa"
    ]


def test_a_line_continued_at_the_end_of_the_file_is_kept() -> None:
    assert requirements_of("a==1 \\\n  --hash=sha256:aa \\") == ["a==1 --hash=sha256:aa"]
