"""Egress rules of teams: permissions, precedence over templates, and when they apply."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from portal.catalog import entries
from portal.catalog.models import Template
from portal.common import etags
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, PreconditionFailed
from portal.common.events.models import Event
from portal.common.history.models import Revision
from portal.people.accounts import team_egress
from portal.people.accounts.models import Role, Team
from portal.site_file import applying, exporting
from portal.workspaces import dispatch, egress
from provisioning.egress_rules import EgressPolicy, names_host, no_looser, policy_of, reachable, tightest
from provisioning.types import EgressLimit
from tests import sites
from tests.factories import MembershipFactory, TemplateFactory, UserFactory, WorkspaceFactory, local_pool_with

pytestmark = pytest.mark.django_db
WORLD = sites.people


def close(team, egress="list", allow="packages.example", actor=SYSTEM):
    return team_egress.set_egress(actor=actor, team=team, egress=egress, egress_allow=allow)


def reach_of(workspace) -> EgressPolicy:
    """Return the rule applied by an unrestricted node and pool."""
    found = EgressPolicy()
    for limit in dispatch.spec_of(workspace).egress:
        found = tightest(found, policy_of(limit.egress, limit.allow))
    return found


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (("", ""), "packages.example"),
        (("list", "packages.example, evil.example, 8.8.8.0/24"), "packages.example"),
        (("list", "*.packages.example"), ""),
        (("list", "evil.example"), ""),
        (("none", ""), ""),
    ],
)
def test_template_cannot_open_egress_closed_by_the_team(template, words):
    workspace = WorkspaceFactory(template=TemplateFactory(egress=template[0], egress_allow=template[1]))
    close(workspace.team)
    workspace.refresh_from_db()
    assert reach_of(workspace).as_text() == words
    assert reach_of(workspace).egress != "open"


def test_owner_never_opens_team_egress(alice, team):
    close(team, "list", "packages.example, *.example.org", actor=alice)
    close(team, "list", "packages.example, git.example.org", actor=alice)
    for kind, allow in (
        ("", ""),
        ("list", "packages.example, git.example.org, evil.example"),
        ("list", "*.example.org"),
        ("list", "packages.example:22"),
        ("list", "8.8.8.0/24"),
        ("list", "0.0.0.0/0"),
    ):
        with pytest.raises(NotAllowed):
            close(team, kind, allow, actor=alice)
    close(team, "none", "", actor=alice)
    with pytest.raises(NotAllowed):
        close(team, "list", "packages.example", actor=alice)
    team.refresh_from_db()
    assert team.egress == "none"


def test_operator_can_open_team_egress(olga, team):
    close(team, "none", "")
    close(team, "", "", actor=olga)
    team.refresh_from_db()
    assert egress.limits_of(Template(), team) == ()


def test_only_owners_change_team_egress(bob, charlie, team):
    for actor in (bob, charlie):
        with pytest.raises(NotAllowed):
            close(team, "none", "", actor=actor)
    team.refresh_from_db()
    assert team.egress == ""


def test_rest_refuses_opening_by_members_owners_and_old_versions(with_token, alice, bob, olga, team):
    url = f"/api/v1/teams/{team.slug}/egress"

    def change(user, given, **headers):
        return with_token(user).put(url, given, content_type="application/json", headers=headers)

    assert change(bob, {"egress": "none"}).status_code == 403
    seen = with_token(alice).get(url)
    assert seen.json()["egress"] == ""
    tight = change(alice, {"egress": "list", "egress_allow": "a.example"}, **{"If-Match": seen["ETag"]})
    assert tight.status_code == 200, tight.content
    late = change(olga, {"egress": "none"}, **{"If-Match": seen["ETag"]})
    assert (late.status_code, late.json()["changed_by"]) == (412, "alice")
    assert change(alice, {"egress": "list", "egress_allow": "a.example, b.example"}).status_code == 403
    assert change(alice, {"egress": ""}).status_code == 403
    assert change(alice, {"egress": "open"}).status_code == 400
    assert change(olga, {"egress": "list", "egress_allow": "http://b"}).status_code == 400
    assert change(olga, {"egress_allow": "a.example"}).status_code == 400
    assert change(alice, {"egress": "none", "name": "x"}).status_code == 400
    assert change(olga, {"egress": "list", "egress_allow": "a.example, b.example"}).status_code == 200
    versions = with_token(alice).get(f"{url}/versions").json()
    assert [(version["number"], version["actor"]) for version in versions] == [
        (3, "olga"),
        (2, "alice"),
        (1, "Berth"),
    ]
    assert with_token(bob).get(f"{url}/versions").status_code == 403


def test_version_is_restored_with_edit_permission(with_token, as_user, alice, bob, olga, team):
    """A new change with the old values: an owner can restrict by it, but not open."""
    team_egress.set_egress(actor=alice, team=team, egress="none")
    team_egress.set_egress(actor=olga, team=team, egress="list", egress_allow="a.example")
    url = f"/api/v1/teams/{team.slug}/egress/versions"
    page = reverse("accounts:team-egress", args=[team.slug])
    assert with_token(bob).post(f"{url}/2/restore").status_code == 403
    opened = with_token(alice).post(f"{url}/1/restore")
    assert (opened.status_code, opened.json()["reason"]["code"]) == (403, "egress_looser")
    assert with_token(olga).post(f"{url}/9/restore").status_code == 404
    late = with_token(olga).post(f"{url}/1/restore", headers={"If-Match": '"1"'})
    assert late.status_code == 412
    shown = as_user(alice).get(page).content.decode()
    assert shown.count("Restore<") == 2
    said = as_user(alice).post(f"{page}versions/1/restore/", follow=True).content.decode()
    assert "Version 1 restored." not in said
    said = as_user(alice).post(f"{page}versions/2/restore/", follow=True).content.decode()
    assert "Version 2 restored." in said
    team.refresh_from_db()
    assert (team.egress, team.egress_allow) == ("none", "")
    newest = Revision.objects.filter(key=team.pk).order_by("-number")[0]
    assert (newest.number, newest.act, newest.restored_from) == (4, "restored", 2)
    assert with_token(olga).post(f"{url}/1/restore").json()["egress"] == ""


def test_concurrent_owners_get_a_conflict(alice, team):
    seen = frozenset({etags.version_of(team)})
    team_egress.set_egress(actor=alice, team=team, egress="none", expected=seen)
    with pytest.raises(PreconditionFailed):
        team_egress.set_egress(actor=alice, team=team, egress="none", egress_allow="x.example", expected=seen)


@pytest.mark.parametrize("allow", ["pypi", "10.0.0.0/40", "*", "a.org;b.org", "a.org\x00", "a.org\ud800"])
def test_non_list_is_refused(team, allow):
    with pytest.raises(InvalidInput):
        close(team, "list", allow)
    with pytest.raises(InvalidInput):
        close(team, "open", "")


def test_change_is_stored_and_audited_and_repetition_is_ignored(team):
    close(team)
    close(team)
    assert Revision.objects.filter(kind="team", key=team.pk).count() == 2
    (event,) = Event.objects.filter(kind="team.egress_set")
    assert event.team == team
    assert event.data["after"] == {"egress": "list", "egress_allow": "packages.example"}


def test_running_workspace_keeps_its_egress_and_shows_the_next(as_user):
    workspace = WorkspaceFactory(pool=local_pool_with(), placed_at=timezone.now() - timedelta(hours=1))
    Team.objects.update(created_at=timezone.now() - timedelta(days=1))
    workspace.team.refresh_from_db()
    before = dispatch.spec_of(workspace)
    url = reverse("workspaces:detail", args=[workspace.pk])
    page = as_user(workspace.owner)
    assert "From the next start" not in page.get(url).content.decode()
    close(workspace.team)
    workspace = type(workspace).objects.get(pk=workspace.pk)
    # The repeated command is equal: running work is not restarted.
    assert dispatch.spec_of(workspace).digest() == before.digest()
    assert "From the next start: Only packages.example" in page.get(url).content.decode()
    workspace.placed_at = timezone.now()
    workspace.save()
    assert dispatch.spec_of(workspace).egress == (EgressLimit("list", "packages.example"),)
    text = page.get(url).content.decode()
    assert "Only packages.example" in text
    assert "From the next start" not in text


def test_template_preview_includes_the_team_rule(with_token, alice, team, catalog):
    close(team)
    answer = with_token(alice).post(
        "/api/v1/catalog/preview",
        {"team": team.slug, "template": "jupyterlab", "flavor": "cpu-small"},
        content_type="application/json",
    )
    assert answer.status_code == 200, answer.content
    assert answer.json()["network"] == "Only packages.example"


def test_own_template_cannot_bypass_the_team_rule(alice, team):
    team = close(team, "none", "")
    given = {"slug": "x", "name": "x", "program": "bash", "argv": ["bash", "{port}", "{token_file}"]}
    own = entries.create(
        actor=alice,
        model=Template,
        values={**given, "egress": "list", "egress_allow": "0.0.0.0/0, evil.example"},
        team=team,
    )
    workspace = WorkspaceFactory(template=own, team=team)
    assert reach_of(workspace) == EgressPolicy(policy_of("none", "").egress)


def test_rule_of_the_charged_team_applies_to_a_member_of_two_teams():
    closed, free = WorkspaceFactory(), WorkspaceFactory()
    MembershipFactory(team=free.team, user=closed.owner, role=Role.MEMBER)
    close(closed.team, "none", "")
    closed.refresh_from_db()
    assert reach_of(closed).egress == "none"
    assert reach_of(free).egress == "open"


SITE = "berth: 1\nteams:\n  vision:\n    name: Vision\n    egress: {egress}\n    egress_allow: {allow}\n"


def test_site_file_contains_team_egress(ada, team):
    text = SITE.format(egress="list", allow="packages.example")
    (step,) = applying.compare(actor=ada, text=text.replace("Vision", team.name))
    assert step.change_texts == ["egress:  → list", "egress_allow:  → packages.example"]
    applying.apply(actor=ada, text=text.replace("Vision", team.name))
    assert applying.compare(actor=ada, text=text.replace("Vision", team.name)) == []
    assert exporting.current()["teams"]["vision"]["egress"] == "list"
    assert Event.objects.filter(kind="team.egress_set", actor=ada).exists()


@pytest.mark.parametrize(
    ("egress", "allow", "line"), [("open", "''", 5), ("list", "'http://x'", 6), ("list", "[x]", 6)]
)
def test_site_file_error_names_the_line_of_an_invalid_rule(ada, team, egress, allow, line):
    text = SITE.format(egress=egress, allow=allow).replace("Vision", team.name)
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=text)
    assert refused.value.extra["errors"]["yaml"][0].params["line"] == line
    team.refresh_from_db()
    assert team.egress == ""


WORDS = (
    "a.example", "*.b.example", "a.example:22", "b.a.example", "*.a.example", "10.1.0.0/16", "10.1.2.0/24",
    "8.8.0.0/16", "8.8.8.8", "0.0.0.0/0", "fd00::/8",
)  # fmt: skip


def test_restricted_rule_never_allows_more():
    """For random pairs: everything reachable under the new rule was allowed before, by network and name."""
    chance = random.Random(7)
    rules = [EgressPolicy(), policy_of("none", "")]
    rules += [policy_of(kind, "") for kind in ("open", "list")]
    rules += [
        policy_of(chance.choice(("open", "list")), " ".join(chance.sample(WORDS, 3))) for _ in range(40)
    ]
    probes = policy_of("list", " ".join(WORDS))
    accepted = 0
    for new, old in itertools.product(rules, rules):
        if not no_looser(new, old):
            continue
        accepted += 1
        assert all(reachable(each, old) for each in probes.allowed if reachable(each, new)), (new, old)
        assert all(names_host(host, old) for host in probes.hosts if names_host(host, new)), (new, old)
    assert accepted > len(rules)
    assert all(no_looser(rule, rule) for rule in rules)


def test_members_cannot_change_team_egress_on_any_page(as_user, bob, team):
    url = reverse("accounts:team-egress", args=[team.slug])
    page = as_user(bob)
    assert "<form" not in page.get(url).content.decode().partition("<main")[2].partition("</main>")[0]
    assert page.post(url, {"egress": "none"}).status_code == 403
    assert as_user(UserFactory()).get(url).status_code == 404


def test_page_explains_why_an_owner_cannot_open_egress(as_user, alice, team):
    close(team, "none", "")
    url = reverse("accounts:team-egress", args=[team.slug])
    answer = as_user(alice).post(url, {"egress": "", "egress_allow": ""})
    assert answer.status_code == 400
    assert "can only restrict network access" in answer.content.decode()
