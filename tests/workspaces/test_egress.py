"""Egress rules of template and pool: in the message to the node, and on the page."""

from __future__ import annotations

import pytest
from django.urls import reverse

from portal.catalog import entries
from portal.catalog.codes import CatalogCode
from portal.catalog.models import Template
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team
from portal.workspaces import dispatch, egress
from provisioning.egress_rules import policy_of
from provisioning.types import EgressLimit
from tests.factories import TemplateFactory, WorkspaceFactory, local_pool_with

pytestmark = pytest.mark.django_db


def pool(**config: str) -> Pool:
    return Pool(slug="p", driver="local", config=config)


@pytest.mark.parametrize(
    ("kind", "allowed", "limits"),
    [
        ("", "", ()),
        ("", "packages.example", ()),
        ("none", "packages.example", (EgressLimit("none"),)),
        (
            "list",
            " packages.example,\n*.a.org  10.1.0.0/16",
            (EgressLimit("list", "packages.example,*.a.org,10.1.0.0/16"),),
        ),
        ("list", "", (EgressLimit("list"),)),
    ],
)
def test_template_egress_is_sent_to_the_node(kind, allowed, limits):
    workspace = WorkspaceFactory(template=TemplateFactory(egress=kind, egress_allow=allowed))
    assert dispatch.spec_of(workspace).egress == limits
    for limit in limits:
        policy_of(limit.egress, limit.allow)  # and parses it


@pytest.mark.parametrize("allowed", ["pypi", "10.0.0.0/40", "http://x.org", "a.org:0", "*", "a.org;b.org"])
def test_non_list_is_refused(allowed):
    given = {"slug": "x", "name": "x", "program": "bash", "argv": ["bash", "{port}"]}
    with pytest.raises(InvalidInput) as refused:
        entries.create(
            actor=SYSTEM,
            model=Template,
            values={**given, "egress": "list", "egress_allow": allowed},
            team=None,
        )
    (reason,) = refused.value.extra["errors"]["egress_allow"]
    assert getattr(reason, "code", CatalogCode.EGRESS_INVALID) == CatalogCode.EGRESS_INVALID


@pytest.mark.parametrize(
    ("template", "config", "words"),
    [
        (("", ""), {}, "Set by the node. Default: the internet, no private networks"),
        (("", ""), {"egress": "open"}, "The internet, no private networks"),
        (
            ("", ""),
            {"egress": "open", "egress_allow": "10.1.0.0/16"},
            "The internet, and of private networks only 10.1.0.0/16",
        ),
        (("none", ""), {}, "No network access"),
        (("", ""), {"egress": "none"}, "No network access"),
        (("list", "packages.example"), {}, "Only packages.example"),
        (("list", "packages.example *.a.org"), {"egress": "list", "egress_allow": "x.a.org"}, "Only x.a.org"),
        (
            ("list", "packages.example"),
            {"egress": "list", "egress_allow": "10.1.0.0/16"},
            "No network access",
        ),
        (("list", "packages.example"), {"egress": "none"}, "No network access"),
    ],
)
def test_shown_egress_is_the_strictest_rule(template, config, words):
    made = TemplateFactory.build(egress=template[0], egress_allow=template[1])
    assert egress.egress_sentence(egress.limits_of(made, Team()), pool(**config)) == words


def test_unenforced_egress_is_not_shown():
    made = egress.limits_of(TemplateFactory.build(egress="none"), Team())
    assert egress.egress_sentence(made, Pool(driver="simulated")) == "" == egress.egress_sentence(made, None)
    assert egress.egress_sentence(made, pool(egress="nonsense")) == ""


def test_page_shows_restricted_egress(as_user):
    workspace = WorkspaceFactory(
        template=TemplateFactory(egress="list", egress_allow="packages.example"), pool=local_pool_with()
    )
    page = as_user(workspace.owner).get(reverse("workspaces:detail", args=[workspace.pk])).content.decode()
    assert "Only packages.example" in page


def test_page_shows_reachable_networks_of_open_egress(as_user):
    pool = local_pool_with()
    Pool.objects.update(config={**pool.config, "egress": "open", "egress_allow": "10.1.0.0/16"})
    workspace = WorkspaceFactory(pool=pool)
    page = as_user(workspace.owner).get(reverse("workspaces:detail", args=[workspace.pk])).content.decode()
    assert "The internet, and of private networks only 10.1.0.0/16" in page


def test_template_egress_is_changed_and_kept_over_rest(with_token, olga):
    given = {"slug": "notebook-x", "name": "x", "program": "bash", "argv": ["bash", "{port}", "{token_file}"]}
    made = entries.create(actor=SYSTEM, model=Template, values=given, team=None)
    url = f"/api/v1/templates/{made.slug}"
    client = with_token(olga)
    answer = client.get(url)
    assert answer.json()["egress"] == ""

    def change(given, seen):
        return client.patch(url, given, content_type="application/json", headers={"If-Match": seen["ETag"]})

    changed = change({"egress": "list", "egress_allow": "packages.example"}, answer)
    assert changed.status_code == 200, changed.content
    made.refresh_from_db()
    assert (made.egress, made.egress_allow) == ("list", "packages.example")
    assert change({"egress": "open"}, changed).status_code == 400
