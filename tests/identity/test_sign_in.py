"""Sign-in by claims: accounts, links, memberships and roles; and attacks."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event, Notification
from portal.people.accounts import deactivation, users
from portal.people.accounts import services as accounts
from portal.people.accounts.models import AccountState, Membership, Team, User
from portal.people.identity import registry, services
from portal.people.identity.decisions import decide
from portal.people.identity.models import GivenPlace, IdentityLink, LinkOrigin
from portal.workspaces import services as workspaces
from portal.workspaces.lifecycle import DesiredState, State
from tests import sites
from tests.factories import MembershipFactory, TeamFactory, UserFactory, WorkspaceFactory
from tests.fixtures import PROVIDER

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.people
RULES = """
[[provider.rules]]
group = "vision"
team = "vision"

[[provider.rules]]
group = "vision-leads"
team = "vision"
role = "owner"

[[provider.rules]]
group = "ops"
site_role = "operator"

[[provider.rules]]
group = "admins"
site_role = "administrator"
"""


def claims(*groups: str, sub: str = "42", name: str = "nora", **more: Any) -> dict[str, Any]:
    address = {"email": f"{name}@example.org", "email_verified": True}
    return {"sub": sub, "preferred_username": name, **address, "groups": list(groups), **more}


def sign_in(*groups: str, **more: Any) -> User:
    user, _decision = services.sign_in(
        provider=registry.provider_by_id("corp"), claims=claims(*groups, **more)
    )
    return User.objects.get(pk=user.pk)


def refusal(*groups: str, **more: Any) -> str:
    with pytest.raises(NotAllowed) as caught:
        sign_in(*groups, **more)
    return caught.value.reason.code.value


def places(user: User) -> dict[str, str]:
    return dict(user.memberships.values_list("team__slug", "role"))


@pytest.fixture(autouse=True)
def _rules(configure, team) -> None:
    configure(PROVIDER + RULES)


@pytest.fixture
def change_settings(configure):
    """Change settings of the provider, with the same rules."""

    def change(line: str, rules: str = RULES) -> None:
        configure(PROVIDER + line + rules)

    return change


# --- accounts ---------------------------------------------------------------------------------------


def test_first_sign_in_creates_the_account_with_memberships_and_roles():
    nora = sign_in("vision", "ops")
    assert (nora.username, nora.email, nora.state) == ("nora", "nora@example.org", AccountState.ACTIVE)
    assert not nora.has_usable_password()
    assert (places(nora), nora.roles) == ({"vision": "member"}, ["operator"])
    kinds = set(Event.objects.filter(targets__key=str(nora.pk)).values_list("kind", flat=True))
    assert {"user.joined", "user.linked", "user.changed"} <= kinds
    actors = set(
        Event.objects.filter(kind="team.member_set", team__slug="vision").values_list(
            "actor_label", flat=True
        )
    )
    assert "The rules of Example Corp" in actors


def test_account_is_identified_by_subject():
    nora = sign_in()
    again = sign_in(name="renamed")
    assert (again.pk, again.username, again.email) == (nora.pk, "nora", "renamed@example.org")
    assert sign_in(sub="43", name="otto").pk != nora.pk


def test_claims_are_not_stored():
    sign_in("vision", secret_claim="confidential-value")
    kept = [str(vars(row)) for model in (IdentityLink, Event) for row in model.objects.all()]
    assert kept
    assert not any("confidential-value" in each for each in kept)


def test_account_creation_can_be_disabled(change_settings):
    change_settings("create_accounts = false\n")
    assert refusal() == "no_account"
    assert not User.objects.filter(username="nora").exists()


@pytest.mark.parametrize(
    "name", ["../etc", "nora nora", "nora@example.org", "-", ".nora", "n" * 33, "{{7*7}}"]
)
def test_invalid_username_is_refused(name):
    assert refusal(name=name, email="") in ("username_not_valid", "username_too_long")


def test_invalid_email_is_ignored():
    assert sign_in(email="<script>@").email == ""


# --- account takeover -----------------------------------------------------------------------------


def test_equal_username_does_not_link_accounts(bob):
    assert refusal(name="bob", email="") == "username_taken"
    assert IdentityLink.objects.count() == 0


def test_equal_email_does_not_link_accounts_by_default(bob):
    assert refusal(name="robert", email=bob.email.upper()) == "email_taken"


def test_deleted_username_is_not_reused(ada, bob):
    users.delete(actor=ada, user=bob)
    assert refusal(name="bob") == "username_taken"


def test_deleted_user_cannot_return_under_another_name(ada):
    users.delete(actor=ada, user=sign_in())
    assert refusal(name="fresh-name") == "user_deleted"


def test_deactivated_user_is_refused_and_gets_nothing(ada):
    nora = sign_in()
    deactivation.deactivate(actor=ada, user=nora)
    assert refusal("vision", "ops") == "account_deactivated"
    nora.refresh_from_db()
    assert (places(nora), nora.roles) == ({}, [])


def test_verified_email_links_accounts_if_configured(change_settings):
    change_settings('link = ["email"]\n')
    olaf = users.create(actor=SYSTEM, username="olaf", email="nora@example.org")
    assert sign_in().pk == olaf.pk
    assert IdentityLink.objects.get().how == LinkOrigin.EMAIL
    olaf.refresh_from_db()
    assert olaf.state == AccountState.ACTIVE


def test_unverified_email_links_no_account(change_settings):
    change_settings('link = ["email"]\n')
    users.create(actor=SYSTEM, username="olaf", email="nora@example.org")
    assert sign_in(email_verified=False).username == "nora"


def test_claimed_address_of_another_user_grants_nothing(change_settings):
    """Mallory sets Nora's address before Nora's first sign-in, to get her teams."""
    change_settings('link = ["email"]\n')
    mallory = UserFactory(username="mallory", email="")
    users.change_email(user=mallory, email="nora@example.org", password="a-long-enough-password")
    assert refusal("vision") == "email_taken"
    assert places(mallory) == {}


def test_username_links_accounts_if_configured(change_settings, bob):
    change_settings('link = ["username"]\n')
    assert sign_in(name="bob", email="").pk == bob.pk


def test_administrators_are_never_linked_automatically(change_settings, ada):
    change_settings('link = ["email", "username"]\n')
    ada.email_confirmed = True
    ada.save()
    assert refusal(name="ada", email=ada.email) == "roles_not_linked"


def test_second_identity_cannot_use_a_linked_account(change_settings):
    change_settings('link = ["email", "username"]\n')
    sign_in()
    assert refusal(sub="43") == "linked_to_another"


def test_administrator_links_by_subject_or_username(ada, bob, alice):
    corp = registry.provider_by_id("corp")
    services.link(actor=ada, provider=corp, user=bob, subject="42")
    assert sign_in().pk == bob.pk
    services.link(actor=ada, provider=corp, user=alice, expected="Alicia")
    assert sign_in(sub="7", name="alicia").pk == alice.pk
    assert refusal(sub="8", name="alice", email="") == "username_taken"
    assert sign_in(sub="8", name="alicia", email="").pk != alice.pk
    with pytest.raises(StateConflict):
        services.link(actor=ada, provider=corp, user=bob, subject="99")
    with pytest.raises(InvalidInput):
        services.link(actor=ada, provider=corp, user=ada, subject="")
    with pytest.raises(NotAllowed):
        services.link(actor=bob, provider=corp, user=bob, subject="1")


def test_unlinking_removes_grants_of_the_rules(ada):
    nora = sign_in("vision", "ops")
    services.unlink(actor=ada, provider_id="corp", username="nora")
    nora.refresh_from_db()
    assert (places(nora), nora.roles, nora.state) == ({}, [], AccountState.INVITED)
    assert refusal() == "username_taken"


def test_sign_ins_at_once_create_one_account(monkeypatch):
    real, calls = services._settle, []

    def slower(provider, given):
        calls.append(1)
        if len(calls) == 1:
            real(provider, given)
            raise IntegrityError
        return real(provider, given)

    monkeypatch.setattr(services, "_settle", slower)
    assert sign_in("vision").username == "nora"
    assert User.objects.filter(username="nora").count() == 1


# --- memberships and roles ------------------------------------------------------------------------


def test_leaving_a_group_removes_only_its_grants():
    other = TeamFactory(slug="audio")
    nora = sign_in("vision", "ops")
    MembershipFactory(user=nora, team=other)
    nora.is_approver = True
    nora.save()
    sign_in()
    nora.refresh_from_db()
    assert (places(nora), nora.roles) == ({"audio": "member"}, ["approver"])


def test_manual_membership_is_kept(team):
    nora = sign_in()
    accounts.set_member(actor=SYSTEM, team=team, username="nora", role="member")
    sign_in("vision")
    sign_in()
    assert places(nora) == {"vision": "member"}


def test_manual_role_returns_when_the_rule_no_longer_applies(team):
    nora = sign_in()
    accounts.set_member(actor=SYSTEM, team=team, username="nora", role="member")
    sign_in("vision-leads")
    assert places(nora) == {"vision": "owner"}
    sign_in()
    assert places(nora) == {"vision": "member"}


def test_team_role_follows_the_group():
    nora = sign_in("vision")
    sign_in("vision", "vision-leads")
    assert places(nora) == {"vision": "owner"}
    sign_in("vision")
    assert places(nora) == {"vision": "member"}
    sign_in()
    assert places(nora) == {}


def test_manual_role_change_takes_over_from_the_rules(team):
    nora = sign_in("vision")
    accounts.set_member(actor=SYSTEM, team=team, username="nora", role="owner")
    sign_in()
    assert places(nora) == {"vision": "owner"}
    assert not GivenPlace.objects.exists()


def test_existing_site_role_is_kept():
    nora = sign_in()
    nora.is_operator = True
    nora.save()
    sign_in("ops")
    sign_in()
    nora.refresh_from_db()
    assert nora.roles == ["operator"]


def test_rule_can_grant_and_revoke_administrator(ada):
    assert sign_in("admins").administers
    assert not sign_in().administers


def test_last_administrator_keeps_the_role_and_is_notified():
    nora = sign_in("admins")
    assert sign_in().administers
    assert Event.objects.filter(kind="user.rules_not_met").exists()
    assert Notification.objects.filter(user=nora, kind="identity.rules_not_met").exists()


def test_workspaces_stop_when_the_member_leaves_the_team(team, local_pool):
    nora = sign_in("vision")
    running = WorkspaceFactory(owner=nora, team=team, state=State.RUNNING, pool=local_pool)
    stopped = WorkspaceFactory(owner=nora, team=team, state=State.STOPPED, desired_state=DesiredState.STOPPED)
    sign_in()
    running.refresh_from_db()
    assert places(nora) == {}
    assert running.desired_state == DesiredState.STOPPED
    with pytest.raises(StateConflict) as caught:
        workspaces.start(actor=nora, workspace_id=stopped.pk)
    assert caught.value.code == "not_a_member"


def test_leaving_owner_passes_the_team_on(change_settings, bob):
    team = TeamFactory(slug="audio")
    change_settings("", '[[provider.rules]]\ngroup = "a"\nteam = "audio"\nrole = "owner"\n')
    nora = sign_in("a")
    sign_in()
    assert places(nora) == {"audio": "owner"}
    assert Event.objects.filter(kind="user.rules_not_met").exists()
    MembershipFactory(team=team, user=bob)
    sign_in()
    assert places(nora) == {}
    assert Membership.objects.get(team=team, user=bob).role == "owner"


# --- missing teams --------------------------------------------------------------------------------


def test_missing_team_is_reported_to_administrators_and_not_created(change_settings, ada):
    change_settings("", '[[provider.rules]]\neveryone = true\nteam = "ghosts"\n')
    nora = sign_in()
    assert places(nora) == {}
    assert not Team.objects.filter(slug="ghosts").exists()
    entry = Event.objects.get(kind="user.rules_not_met")
    assert entry.data["problems"][0]["code"] == "team_not_there"
    sign_in()
    assert Notification.objects.filter(user=ada, kind="identity.rules_not_met").count() == 1


def test_rule_can_create_a_team(change_settings):
    rule = "[[provider.rules]]\ngroup_pattern = \"gpu-(.+)\"\nteam = '\\1'\ncreate_team = true\n"
    change_settings("", rule)
    nora = sign_in("gpu-audio", "gpu-../x", "gpu-" + "y" * 50)
    assert places(nora) == {"audio": "member"}
    assert Team.objects.filter(slug="audio").exists()
    codes = {problem["code"] for problem in Event.objects.get(kind="user.rules_not_met").data["problems"]}
    assert codes == {"team_name_not_valid"}


# --- audit of refusals, and previews --------------------------------------------------------------


def test_refusal_is_audited(bob):
    refusal(name="bob", email="")
    entry = Event.objects.get(kind="session.provider_refused")
    assert entry.data == {"provider": "corp", "code": "username_taken"}


def test_disabled_provider_signs_no_one_in(change_settings):
    change_settings("enabled = false\n")
    assert refusal() == "provider_off"


@pytest.mark.parametrize("groups", [(), ("vision",), ("vision-leads", "ops"), ("admins",)])
def test_preview_equals_the_sign_in(groups, ada):
    for held in ((), ("vision",), ("vision-leads", "ops")):
        sign_in(*held)
        decision = decide(registry.provider_by_id("corp"), claims(*groups))
        foretold = {place.team: place.role for place in decision.membership_changes if place.role}
        roles = sorted(role.role for role in decision.roles if role.effect != "lost")
        before = (User.objects.count(), Event.objects.count(), Membership.objects.count())
        decide(registry.provider_by_id("corp"), claims(*groups))
        assert (User.objects.count(), Event.objects.count(), Membership.objects.count()) == before
        nora = sign_in(*groups)
        assert (places(nora), sorted(nora.roles)) == (foretold, roles)


# --- viewers and auditors ---------------------------------------------------------------------------


def test_group_of_viewers(change_settings, team, local_pool):
    change_settings("", RULES + '[[provider.rules]]\neveryone = true\nteam = "vision"\nrole = "viewer"\n')
    nora = sign_in()
    assert places(nora) == {"vision": "viewer"}
    sign_in("vision")
    assert places(nora) == {"vision": "member"}
    running = WorkspaceFactory(owner=nora, team=team, state=State.RUNNING, pool=local_pool)
    sign_in()
    running.refresh_from_db()
    assert (places(nora), running.desired_state) == ({"vision": "viewer"}, DesiredState.STOPPED)


def test_new_auditor_loses_incompatible_roles_and_memberships(change_settings):
    change_settings("", RULES + '[[provider.rules]]\ngroup = "audit"\nsite_role = "auditor"\n')
    nora = sign_in("vision", "ops")
    sign_in("audit")
    nora.refresh_from_db()
    assert (places(nora), nora.roles) == ({}, ["auditor"])
    sign_in("audit", "ops", "vision")
    nora.refresh_from_db()
    assert (places(nora), nora.roles) == ({}, ["auditor"])
    codes = {problem["code"] for problem in Event.objects.get(kind="user.rules_not_met").data["problems"]}
    assert codes == {"auditor_holds_no_other_role", "auditor_only_views"}
    sign_in("ops", "vision")
    nora.refresh_from_db()
    assert (places(nora), nora.roles) == ({"vision": "member"}, ["operator"])
