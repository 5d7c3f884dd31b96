"""Test cases for every page, configured by a class per page.

Permissions are in `tests/permissions`; these cases check what all pages have in common.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import pytest
from django.test import Client
from django.urls import resolve

INLINE = re.compile(r"""<style\b|<script(?![^>]*\bsrc=)(?![^>]*application/json)|\son\w+="|\sstyle=\"""")


class Forms(HTMLParser):
    """The forms of a page: attributes, and names and kinds of their fields."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "form":
            self.found.append({"attrs": attributes, "names": set(), "submits": False})
        elif self.found:
            form = self.found[-1]
            form["names"].add(attributes.get("name"))
            form["submits"] |= tag == "button" and attributes.get("type", "submit") == "submit"


@pytest.mark.django_db
class PageCase:
    """A page for a signed-in user. `partials` are the elements that htmx may request alone."""

    reader: ClassVar[str] = "alice"
    fixtures: ClassVar[tuple[str, ...]] = ("team",)
    partials: ClassVar[tuple[str, ...]] = ()
    url: Any

    @pytest.fixture(autouse=True)
    def _stocked(self, request: pytest.FixtureRequest, db: None) -> None:
        self.there = {name: request.getfixturevalue(name) for name in self.fixtures}

    def test_page(
        self, subtests: pytest.Subtests, client: Client, request: pytest.FixtureRequest, as_user: Any
    ) -> None:
        """All checks of one page in one test, since rendering is expensive."""
        with subtests.test("who is not signed in is sent to sign in and back"):
            away = client.get(self.url)
            assert (away.status_code, away["Location"]) == (
                302,
                f"/sign-in/?next={quote(self.url, safe='/')}",
            )

        browser: Client = as_user(request.getfixturevalue(self.reader))
        page = browser.get(self.url)
        whole = page.content.decode()
        with subtests.test("a whole page without inline code"):
            assert page.status_code == 200
            assert whole.lower().startswith("<!doctype html>")
            assert whole.count("<h1") == 1
            assert re.search(r"<title>\s*\S", whole)
            assert not INLINE.search(whole)
        with subtests.test("forms work without JavaScript"):
            for form in Forms(whole).found:
                attrs = form["attrs"]
                resolve(urlsplit(attrs.get("action") or self.url).path)
                assert form["submits"], attrs
                if (attrs.get("method") or "get").lower() == "post":
                    assert "csrfmiddlewaretoken" in form["names"], attrs
        with subtests.test("HEAD is the page without its body"):
            head = browser.head(self.url)
            assert (head.status_code, head.content) == (200, b"")
            assert head["Content-Type"] == page["Content-Type"]
        for name in self.partials:
            with subtests.test("htmx gets the part that it asks for", part=name):
                part = browser.get(self.url, headers={"HX-Request": "true", "HX-Target": name})
                html = part.content.decode()
                assert part.status_code == 200
                assert f'id="{name}"' in whole
                assert "<html" not in html
                assert 0 < len(html) < len(whole)
                assert {"HX-Request", "HX-Target"} & {word.strip() for word in part["Vary"].split(",")}
        with subtests.test("htmx gets the whole page when it asks for another part"):
            other = browser.get(self.url, headers={"HX-Request": "true", "HX-Target": "elsewhere"})
            assert "<html" in other.content.decode()
