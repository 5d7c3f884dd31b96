"""What every page has to do, as test cases that a page's class configures.

Who of all people gets which page is in `tests/permissions`; here is what holds for each page alike.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import pytest
from django.test import Client
from django.urls import resolve

INLINE = re.compile(
    r"""<style\b|<script(?![^>]*\bsrc=)(?![^>]*application/json)|\son\w+="|\sstyle=" """.strip()
)


class Forms(HTMLParser):
    """The forms of a page: attributes, and the names and kinds of what is in them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self.found.append({"attrs": given, "names": set(), "submits": False})
        elif self.found:
            form = self.found[-1]
            form["names"].add(given.get("name"))
            form["submits"] |= tag == "button" and given.get("type", "submit") == "submit"


@pytest.mark.django_db
class PageCase:
    """A page for whoever is signed in. `partials` are the elements that htmx may ask for alone."""

    reader: ClassVar[str] = "alice"
    fixtures: ClassVar[tuple[str, ...]] = ("team",)
    partials: ClassVar[tuple[str, ...]] = ()
    url: Any

    @pytest.fixture(autouse=True)
    def _stocked(self, request: pytest.FixtureRequest, db: None) -> None:
        self.there = {name: request.getfixturevalue(name) for name in self.fixtures}

    @pytest.fixture
    def browser(self, request: pytest.FixtureRequest, as_user: Any) -> Client:
        signed_in: Client = as_user(request.getfixturevalue(self.reader))
        return signed_in

    def test_who_is_not_signed_in_is_sent_to_sign_in_and_back(self, client: Client) -> None:
        away = client.get(self.url)
        assert (away.status_code, away["Location"]) == (302, f"/sign-in/?next={quote(self.url, safe='/')}")

    def test_it_is_a_whole_page_without_inline_code(self, browser: Client) -> None:
        page = browser.get(self.url)
        html = page.content.decode()
        assert page.status_code == 200
        assert html.lower().startswith("<!doctype html>")
        assert html.count("<h1") == 1
        assert re.search(r"<title>\s*\S", html)
        assert not re.search(
            r"<style\b|<script(?![^>]*\bsrc=)(?![^>]*application/json)|\son\w+=\"|\sstyle=\"", html
        )

    def test_head_is_the_page_without_its_body(self, browser: Client) -> None:
        head, page = browser.head(self.url), browser.get(self.url)
        assert (head.status_code, head.content) == (200, b"")
        assert head["Content-Type"] == page["Content-Type"]

    def test_its_forms_work_without_javascript(self, browser: Client) -> None:
        for form in Forms(browser.get(self.url).content.decode()).found:
            attrs = form["attrs"]
            resolve(urlsplit(attrs.get("action") or self.url).path)
            assert form["submits"], attrs
            if (attrs.get("method") or "get").lower() == "post":
                assert "csrfmiddlewaretoken" in form["names"], attrs

    def test_htmx_gets_the_part_that_it_asks_for(self, browser: Client) -> None:
        whole = browser.get(self.url).content.decode()
        for name in self.partials:
            part = browser.get(self.url, headers={"HX-Request": "true", "HX-Target": name})
            html = part.content.decode()
            assert part.status_code == 200
            assert f'id="{name}"' in whole
            assert "<html" not in html
            assert 0 < len(html) < len(whole)
            assert {"HX-Request", "HX-Target"} & {word.strip() for word in part["Vary"].split(",")}
        other = browser.get(self.url, headers={"HX-Request": "true", "HX-Target": "elsewhere"})
        assert "<html" in other.content.decode()
