"""Assets of every page: small, complete, without inline code."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from portal.common.templatetags.berth import ICON_SPRITE, STATES, account_name, service_badge, table_region
from portal.people.accounts.models import User
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
FIRST_LOAD_BYTES = 150_000
PARTIAL_BYTES = 15_000


def symbols() -> set[str]:
    return set(re.findall(r'<symbol id="([\w-]+)"', (ROOT / "static" / ICON_SPRITE).read_text()))


def test_templates_have_no_inline_code_and_document_their_context() -> None:
    for template in TEMPLATES:
        text = template.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), f"{template}: inline script"
        handler = re.search(r"<style|\sstyle=|\son\w+=|hx-on|javascript:", text)
        assert not handler, f"{template}: inline style or handler"
        foreign = re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)
        assert not foreign, f"{template}: something from elsewhere"
        # Hosted programs of others need no text.
        commented = template.parent.name == "api" or "{% comment %}" in text or "{#" in text
        assert commented, f"{template}: no comment at its head"


def test_scrolling_tables_are_keyboard_accessible() -> None:
    """Only `table_region` makes the attributes for it."""
    for template in TEMPLATES:
        text = template.read_text()
        assert "table-wrap" not in text, template
        regions = len(re.findall(r"<div {% table_region [^%]+ %}>", text))
        assert text.count("<table") == regions, template


def test_table_regions_have_a_name() -> None:
    assert table_region(label="Made <up>") == (
        'class="table-wrap" tabindex="0" role="region" aria-label="Made &lt;up&gt;"'
    )
    assert table_region(labelledby="rules-title", css="gap-top-s") == (
        'class="table-wrap gap-top-s" tabindex="0" role="region" aria-labelledby="rules-title"'
    )


@pytest.mark.parametrize("name", ["ada", "Berth", "The rules of svc-x", "svc", "", "<b>"])
def test_only_service_accounts_are_marked(name: str) -> None:
    assert account_name(name) == name and service_badge(name) == ""
    marked = account_name("svc-<b>")
    assert "Service account" in marked and "svc-&lt;b&gt;" in marked


def test_every_icon_in_use_is_in_the_sprite() -> None:
    used = {look.icon for look in STATES.values()}
    for template in TEMPLATES:
        text = template.read_text()
        used |= set(re.findall(r'{% icon "([\w-]+)"', text))
        used |= set(re.findall(r'{% badge "[^"]*" "([\w-]+)"', text))
    assert used <= symbols(), f"missing: {sorted(used - symbols())}"


def test_every_state_has_a_look() -> None:
    assert set(STATES) == {state.value for state in State}
    for state in State:
        assert STATES[state.value].word == state.label


def test_vendored_packages_have_a_licence_file() -> None:
    for folder in (ROOT / "static/vendor").iterdir():
        if folder.is_dir():
            assert (folder / "LICENSE").stat().st_size > 100, folder


def test_first_load_and_partial_stay_small(
    as_user: Callable[..., Client], alice: User, workspace_in: Callable[..., Workspace]
) -> None:
    for number in range(200):
        workspace_in("running", alice, name=f"workspace-{number}")
    client = as_user(alice)
    html = client.get("/").content
    text = html.decode()
    linked = set(re.findall(r'(?:src|href)="/static/([^"#]+)', text)) | {ICON_SPRITE}
    assert len(linked) >= 7
    total = len(gzip.compress(html))
    for name in linked:
        found = finders.find(name)
        assert found, f"{name} is linked and missing"
        total += len(gzip.compress(Path(found).read_bytes()))
    assert total < FIRST_LOAD_BYTES, total
    partial = client.get("/", headers={"HX-Request": "true", "HX-Target": "list"}).content
    assert partial.count(b'class="card ws"') == 24
    assert len(gzip.compress(partial)) < PARTIAL_BYTES
