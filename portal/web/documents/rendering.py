"""Renders Markdown for the portal's pages: no raw HTML, no inline styles, and links within the portal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext
from markdown_it import MarkdownIt
from markdown_it.token import Token

from portal.web.documents.library import Anchors, Document, Heading, documents, files, strip_markup

MAX_CONTENTS = 40
"""Maximum number of headings in a table of contents. Longer ones contain only level 2."""


@dataclass(frozen=True, slots=True)
class Page:
    """A rendered document: its body without the first heading, and its table of contents."""

    title: str
    body: SafeString
    contents: tuple[Heading, ...]


def address_of(name: str) -> str:
    """Return the URL path of a document in the portal."""
    if name.startswith("adr/"):
        return reverse("documents:decision", args=[name.removeprefix("adr/")])
    return reverse("documents:page", args=[name])


def page_of(document: Document) -> Page:
    """Return the rendered document. Cached until the file changes."""
    return _page(document, document.path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _page(document: Document, _changed_ns: int) -> Page:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = markdown.parse(document.text)
    headings: list[Heading] = []
    body = markdown.renderer.render(_prepare_tokens(tokens, document, headings), markdown.options, {})
    contents = [heading for heading in headings if heading.level in (2, 3)]
    if len(contents) > MAX_CONTENTS:
        contents = [heading for heading in contents if heading.level == 2]
    # Safe: the parser escapes all text and accepts no HTML; the documents are part of the product.
    return Page(document.title, mark_safe(body), tuple(contents))  # noqa: S308


def _prepare_tokens(tokens: Sequence[Token], document: Document, headings: list[Heading]) -> list[Token]:
    """Return the tokens with anchors, table wrappers and portal links, without the first heading."""
    anchors, ready = Anchors(), []
    tables: Counter[str] = Counter()
    skipping = False
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            title = strip_markup(tokens[at + 1].content)
            heading = Heading(int(token.tag[1]), title, anchors.generate(title))
            skipping = heading.level == 1 and not headings
            headings.append(heading)
            token.attrSet("id", heading.anchor)
        elif token.type == "inline":
            token.children = _link_to_portal(token.children or [], document)
        elif token.type in ("th_open", "td_open"):
            _class_for_style(token)
        elif token.type == "fence":
            token = _code(token)
        if skipping:
            skipping = token.type != "heading_close"
            continue
        if token.type == "table_open":
            label = headings[-1].title if headings else document.title
            tables[label] += 1
            if tables[label] > 1:  # Landmarks need unique names.
                label = f"{label} {tables[label]}"
            ready.append(
                _html(
                    format_html(
                        '<div class="table-wrap" tabindex="0" role="region" aria-label="{}">',
                        gettext("Table: %(title)s") % {"title": label},
                    )
                )
            )
        if token.type == "heading_close":
            ready.append(_html(_anchor(headings[-1])))
        ready.append(token)
        if token.type == "table_close":
            ready.append(_html("</div>"))
    return ready


def _anchor(heading: Heading) -> str:
    label = gettext("Link to “%(title)s”") % {"title": heading.title}
    return format_html(' <a class="anchor" href="#{}" aria-label="{}">#</a>', heading.anchor, label)


def _html(text: str) -> Token:
    return Token("html_block", "", 0, content=text)


def _code(token: Token) -> Token:
    """Return a code block that can be scrolled by keyboard."""
    label = gettext("Code")
    return _html(
        format_html(
            '<pre class="code" tabindex="0" role="region" aria-label="{}"><code>{}</code></pre>\n',
            label,
            token.content,
        )
    )


def _class_for_style(token: Token) -> None:
    """Replace a cell's alignment style with a class, because the CSP forbids inline styles."""
    style = str(token.attrs.pop("style", ""))
    if style.endswith("right"):
        token.attrSet("class", "num")


def _link_to_portal(children: Sequence[Token], document: Document) -> list[Token]:
    """Return links and images with portal URLs. Links without a target in the portal become text."""
    ready: list[Token] = []
    dropped: list[bool] = []
    page = ""
    for token in children:
        if token.type == "text" and page and token.content == page:
            token.content = documents()[document.target(page).removesuffix(".md")].title
        page = ""
        if token.type == "link_open":
            address = _address(str(token.attrGet("href") or ""), document)
            dropped.append(not address)
            if not address:
                continue
            target = str(token.attrGet("href") or "").partition("#")[0]
            # If the link text is only the file name, replace it with the document's title.
            page = target if document.target(target).removesuffix(".md") in documents() else ""
            token.attrSet("href", address)
        elif token.type == "link_close":
            if dropped.pop():
                continue
        elif token.type == "image":
            token.attrSet("src", _address(str(token.attrGet("src") or ""), document))
            token.attrSet("loading", "lazy")
        ready.append(token)
    return ready


def _address(link: str, document: Document) -> str:
    """Return the portal URL of a link in this document, or an empty string."""
    parts: Any = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return link
    if parts.scheme or parts.netloc:
        return ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    if not parts.path:
        return fragment
    target = document.target(parts.path)
    name = re.sub(r"\.md$", "", target)
    if name in documents():
        return address_of(name) + fragment
    if target in files():
        return reverse("documents:file", args=[target])
    return ""


def highlight(text: str, ranges: Sequence[tuple[int, int]]) -> SafeString:
    """Return the text with these ranges highlighted."""
    pieces, at = [], 0
    for start, end in ranges:
        pieces.append((text[at:start], text[start:end]))
        at = end
    return format_html("{}{}", format_html_join("", "{}<mark>{}</mark>", pieces), text[at:])
