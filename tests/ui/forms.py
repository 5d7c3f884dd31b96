"""Form data as a browser would send it: names and values of the fields on the page."""

from __future__ import annotations

from html.parser import HTMLParser


class _Page(HTMLParser):
    """All forms of a page, each with its action and its fields in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms: list[tuple[str, list[tuple[str, str]]]] = []
        self._select, self._area = "", ""
        self._first: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append((attributes.get("action", ""), []))
        if not self.forms:
            return
        fields = self.forms[-1][1]
        kind, name = attributes.get("type", "text"), attributes.get("name", "")
        if tag == "input" and name and kind not in ("submit", "button", "file"):
            if kind not in ("checkbox", "radio") or "checked" in attributes:
                fields.append((name, attributes.get("value", "on" if kind == "checkbox" else "")))
        elif tag == "select":
            self._select, self._first = name, None
        elif tag == "option" and self._select:
            self._first = attributes.get("value", "") if self._first is None else self._first
            if "selected" in attributes:
                fields.append((self._select, attributes.get("value", "")))
                self._select = ""
        elif tag == "textarea":
            self._area = name
            fields.append((name, ""))

    def handle_data(self, data: str) -> None:
        if self._area:
            name, before = self.forms[-1][1][-1]
            self.forms[-1][1][-1] = (name, before + data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""
        if tag == "select" and self._select:
            self.forms[-1][1].append((self._select, self._first or ""))
            self._select = ""


def filled(html: str, field: str) -> tuple[str, dict[str, list[str]]]:
    """Return the action and data of the first form with a field of this name."""
    for action, fields in _Page(html).forms:
        if any(name == field for name, _ in fields):
            sent: dict[str, list[str]] = {}
            for name, value in fields:
                sent.setdefault(name, []).append(value)
            return action, sent
    raise AssertionError(f"no form has the field {field}")
