"""Pages of the documents: complete, with working links; no other file is served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from portal.common.errors import StateConflict
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.registry import registry
from portal.reports import metrics
from portal.web.documents import library, navigation, rendering
from tests.documents import reference, screenshots
from tests.ui.cases import INLINE, PageCase

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINK = re.compile(r'(?:href|src)="(/docs/[^"]*)"')


class TestOverview(PageCase):
    url = "/docs/"


class TestDocument(PageCase):
    url = "/docs/gpus/"


class TestDecisions(PageCase):
    url = "/docs/adr/"


class TestDecision(PageCase):
    url = "/docs/adr/0010-rooms/"


class TestSearch(PageCase):
    url, partials = "/docs/search/?q=cordon", ("found",)

    def test_anonymous_visitor_signs_in_and_returns(self, client: Any) -> None:
        assert client.get(self.url)["Location"].startswith("/sign-in/?next=/docs/search/")


def test_navigation_lists_exactly_the_existing_documents() -> None:
    there = {path.stem for path in DOCS.glob("*.md")}
    assert set(navigation.ordered()) == there
    assert len(navigation.ordered()) == len(there)


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_generated_pages_are_current(name: str) -> None:
    assert (DOCS / f"{name}.md").read_text() == reference.PAGES[name](), "Run: make documents"


def test_every_image_is_generated_and_used() -> None:
    text = "".join(path.read_text() for path in [DOCS.parent / "README.md", *DOCS.glob("*.md")])
    shown = set(re.findall(r"!\[[^\]]+\]\((?:docs/)?images/([\w-]+)\.png\)", text))
    assert {path.stem for path in (DOCS / "images").glob("*.png")} == set(screenshots.SHOTS) == shown


def test_every_setting_is_in_the_reference() -> None:
    page = (DOCS / "settings.md").read_text()
    code = "".join(path.read_text() for path in (DOCS.parent / "portal" / "settings").glob("*.py"))
    read = set(re.findall(r'(?:env(?:\.\w+)?|amounts|ports)\(\s*"((?:BERTH|EMAIL|DATABASE)_\w+)"', code))
    # Variables between services of one machine, and those for tests and developers.
    own = {"BERTH_DEBUG", "BERTH_STATIC_FROM_SOURCE", "BERTH_REDIS_URL"}
    assert len(read) > 90
    assert {each for each in read - own if f"`{each}`" not in page} == set()


def test_every_reason_code_has_an_anchor() -> None:
    anchors = {section.heading.anchor for section in library.sections((DOCS / "reason-codes.md").read_text())}
    assert {code.value for enumeration in registry.enumerations for code in enumeration} <= anchors


@pytest.mark.parametrize("name", sorted(library.documents()))
def test_page_has_valid_anchors_and_links_and_no_inline_code(name: str) -> None:
    """Anchors equal those of the search and of GitHub."""
    document = library.documents()[name]
    body = rendering.page_of(document).body
    assert not INLINE.search(body)
    assert "<h1" not in body
    expected = [section.heading.anchor for section in library.sections(document.text)]
    assert re.findall(r'<h[2-6] id="([^"]+)"', body) == expected[1:]
    for link in LINK.findall(body):
        path, _, anchor = link.partition("#")
        target = re.fullmatch(r"/docs/(?:files/(.+)|(.+)/)", path)
        assert target, link
        if target[1]:
            assert target[1] in library.files(), link
            continue
        other = library.documents()[target[2]]
        if anchor:
            assert anchor in {section.heading.anchor for section in library.sections(other.text)}, link


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path",
    ["../settings.py", "openapi.yaml/../../manage.py", "%2e%2e/manage.py", "gpus.md", "images", "no.png"],
)
def test_only_listed_files_are_served(as_user: Any, alice: Any, path: str) -> None:
    assert as_user(alice).get(f"/docs/files/{path}").status_code == 404


@pytest.mark.django_db
def test_image_is_served_with_its_media_type(as_user: Any, alice: Any) -> None:
    response = as_user(alice).get("/docs/files/images/home.png")
    assert (response["Content-Type"], response["Cache-Control"]) == ("image/png", "private, max-age=600")
    assert response.content[:4] == b"\x89PNG"


@pytest.mark.django_db
def test_missing_pages_are_not_found(as_user: Any, alice: Any) -> None:
    browser = as_user(alice)
    assert [browser.get(f"/docs/{path}/").status_code for path in ("nothing", "adr/nothing")] == [404, 404]


@pytest.mark.django_db
def test_text_of_a_query_is_shown_as_text(as_user: Any, alice: Any) -> None:
    page = as_user(alice).get("/docs/search/", {"q": "<script>alert(1)</script> gpu"}).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.django_db
def test_empty_search_links_to_troubleshooting(as_user: Any, alice: Any) -> None:
    page = as_user(alice).get("/docs/search/", {"q": "xyzzyplugh"}).content.decode()
    assert "No results for" in page
    assert reverse("documents:page", args=["troubleshooting"]) in page


def test_html_in_markdown_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text(
        "# T\n\n<script>x</script> [a](javascript:alert(1)) [b](data:text/html,x) [c](../../etc/passwd)\n\n"
        "| n |\n|--:|\n| 1 |\n"
    )
    body = rendering.page_of(library.Document("x", path)).body
    assert "<script" not in body
    assert "javascript:" not in body.replace("[a](javascript:", "")
    assert "href" not in body
    assert 'class="num"' in body


def test_error_page_links_to_its_reason_code(rf: Any) -> None:
    from django.template.loader import render_to_string

    error = StateConflict(Reason(CommonCode.CHOOSE_ONE_OF, {"known": ["a"]}))
    page = render_to_string("errors/problem.html", {"error": error, "request_id": "r-1"})
    assert f'href="/docs/reason-codes/#{CommonCode.CHOOSE_ONE_OF.value}"' in page
    assert "r-1" in page


@pytest.mark.django_db
def test_guide_names_every_metric() -> None:
    text = (DOCS / "monitoring.md").read_text()
    families = {metrics.exposition_name(family) for family in metrics.families()}
    assert set(re.findall(r"`(berth_[a-z_]+)`", text)) == families


def test_changelog_is_a_page_with_links_to_documents() -> None:
    body = rendering.page_of(library.documents()["changelog"]).body
    assert 'href="/docs/catalog/#the-site-as-a-file"' in body
    assert ">docs/catalog.md" not in body
