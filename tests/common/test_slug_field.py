"""A slug that was left empty follows the name, in every form that asks for one."""

from __future__ import annotations

import pytest
from django import forms

from portal.common.names import slug_of, slug_validator
from portal.common.slug_field import SlugField, SlugFromName


class Form(SlugFromName):
    name = forms.CharField()
    slug = SlugField(max_length=12)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Vision", "vision"),
        (" Computer  vision (2026) ", "computer-vis"),
        ("Équipe réseau", "equipe-resea"),
        ("abcdefghijkl mno", "abcdefghijkl"),
        ("abcdefghijk-lmn", "abcdefghijk"),
    ],
)
def test_empty_slug_follows_the_name(name: str, slug: str) -> None:
    form = Form({"name": name, "slug": ""})
    assert form.is_valid() and form.cleaned_data["slug"] == slug
    slug_validator(slug)


def test_entered_slug_is_kept() -> None:
    form = Form({"name": "Vision", "slug": "cv"})
    assert form.is_valid() and form.cleaned_data["slug"] == "cv"


def test_name_without_latin_letters_needs_a_slug() -> None:
    assert slug_of("研究", 12) == ""
    form = Form({"name": "研究", "slug": ""})
    assert not form.is_valid() and form.errors.as_data()["slug"][0].code == "required"
