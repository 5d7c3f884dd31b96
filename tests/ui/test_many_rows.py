"""Pages with a thousand rows take as many queries as with a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import User
from tests.catalog_pages.test_many_entries import environments, flavors, templates

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.thorough("hundreds of rows; query counts have tests with few"),
]
Browse = Callable[..., Any]
MANY, FEW = 1000, 60
"""The few are more than a page shows."""


def asked(browser: Any, path: str) -> int:
    """Return the number of queries of a page after a first visit."""
    browser.get(path)
    with CaptureQueriesContext(connection) as queries:
        page = browser.get(path)
    assert page.status_code == 200
    return len(queries)


@pytest.mark.parametrize(
    "path, make, model",
    [
        ("/catalog/templates/", templates, Template),
        ("/catalog/flavors/", flavors, Flavor),
        ("/environments/", environments, Environment),
    ],
)
def test_catalog_lists_with_many_rows(
    path: str, make: Callable[[int], Any], model: Any, as_user: Browse, olga: User, local_pool: Pool
) -> None:
    browser = as_user(olga)
    model.objects.all().delete()
    make(FEW)
    few = asked(browser, path)
    model.objects.all().delete()
    make(MANY)
    assert asked(browser, path) == few
    assert asked(browser, f"{path}?page=3") == few


def test_pool_list_with_many_rows(as_user: Browse, olga: User, catalog: Any, local_pool: Pool) -> None:
    browser = as_user(olga)

    def pools(numbers: range) -> None:
        Pool.objects.bulk_create(Pool(slug=f"p{n:04}", name=f"P {n:04}", driver="local") for n in numbers)

    pools(range(FEW))
    few = asked(browser, "/pools/")
    pools(range(FEW, MANY))
    assert asked(browser, "/pools/") == few
