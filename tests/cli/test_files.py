"""`berth files …`: requests to the portal, and local files."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from portal.cli.client.files import Files
from portal.cli.errors import Unreachable
from portal.workspaces.home_files import services
from tests.factories import WorkspaceFactory


@pytest.fixture
def node(bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Bob's workspace; returns the files of his home by path."""
    WorkspaceFactory(owner=bob, team=team, name="mine")
    held: dict[str, Any] = {"a": b"ay"}

    def listing(*, offset: int, path: str, **_: Any) -> services.Listing:
        rows = [services.Entry(name, name, "file", len(data), None) for name, data in sorted(held.items())]
        return services.Listing(path, tuple(rows[offset : offset + 2]), len(rows), offset)

    def delete(*, paths: list[str], **_: Any) -> None:
        for path in paths:
            held.pop(path)

    @contextmanager
    def transfer(_files: Any, method: str, url: str, **more: Any) -> Any:
        if method == "PUT":
            held[url] = b"".join(more["content"])
            assert more["headers"] == {"Content-Length": str(len(held[url]))}
        if url == "broken":
            raise Unreachable("The connection was lost.")
        yield SimpleNamespace(iter_bytes=lambda _size: iter([held[url][:1], held[url][1:]]))

    monkeypatch.setattr(services, "listing", listing)
    monkeypatch.setattr(services, "delete", delete)
    monkeypatch.setattr(services, "upload_url", lambda *, path, **_: path)
    monkeypatch.setattr(services, "download_url", lambda *, path, **_: path)
    monkeypatch.setattr(Files, "transfer", transfer)
    return held


def test_files_are_uploaded_listed_and_deleted(
    as_bob: Any, node: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "100%").write_bytes(b"all")
    assert as_bob("files", "put", "mine", "100%", "--into", "~/data/").code == 0
    assert node["data/100%25"] == b"all"
    node["b"] = node["c"] = b""
    assert [row["path"] for row in as_bob("files", "ls", "mine", "--json").json] == [
        "a",
        "b",
        "c",
        "data/100%25",
    ]
    assert as_bob("files", "get", "mine", "./a").out == "a: 2 bytes\n"
    assert (tmp_path / "a").read_bytes() == b"ay"
    assert as_bob("files", "get", "mine", "a").code == 2
    assert as_bob("files", "get", "mine", "a", "--force").code == 0
    assert as_bob("files", "rm", "mine", "a").code == 2
    assert as_bob("files", "rm", "mine", "~", "--yes").code == 2
    assert as_bob("files", "rm", "mine", "a", "--yes").code == 0
    assert "a" not in node


def test_interrupted_upload_leaves_no_file(as_bob: Any, node: dict[str, Any], tmp_path: Any) -> None:
    (tmp_path / "here").mkdir()
    assert as_bob("files", "get", "mine", "broken", "--to", str(tmp_path / "here" / "x")).code == 4
    assert as_bob("files", "put", "mine", str(tmp_path / "nothing")).code == 2
    assert list((tmp_path / "here").iterdir()) == []


def test_files_are_copied_in_both_directions(
    as_bob: Any, node: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "a:b"):
        (tmp_path / name).write_bytes(name.encode())
    assert as_bob("cp", "one", "./a:b", "mine:data/").code == 0
    assert as_bob("cp", "two", "mine:").code == 0
    assert (node["data/one"], node["data/a:b"], node["two"]) == (b"one", b"a:b", b"two")
    (tmp_path / "here").mkdir()
    assert as_bob("cp", "mine:two", "here").out == "here/two: 3 bytes\n"
    assert as_bob("cp", "mine:two", "here").code == 2
    assert as_bob("cp", "mine:two", "here", "--force").code == 0
    assert as_bob("cp", "theirs:two", "here/x").code == 5


@pytest.mark.parametrize("paths", [["one"], ["one", "two"], ["mine:a", "mine:b"], ["mine:a", "mine:b", "."]])
def test_uncopyable_files_are_reported(as_bob: Any, node: dict[str, Any], paths: list[str]) -> None:
    done = as_bob("cp", *paths)
    assert (done.code, bool(done.err)) == (2, True)
