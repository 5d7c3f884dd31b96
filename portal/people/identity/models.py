"""Links between accounts and identities, and grants by rules of providers.

Claims are not stored: they are used during the sign-in only.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from portal.people.accounts.models import Role, SiteRole, Team, User


class LinkOrigin(models.TextChoices):
    """How an account was linked to an identity."""

    CREATED = "created"
    EMAIL = "email"
    USERNAME = "username"
    ADMINISTRATOR = "administrator"


class IdentityLink(models.Model):
    """An identity at a provider and the account that it signs in to.

    A link created by name is pending: `subject` is empty until the user with the name `expected` signs in.
    The link of a deleted account stays, so that the identity gets no new account.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="identities")
    provider = models.CharField(max_length=40)
    subject = models.CharField(
        max_length=255, blank=True, help_text="Subject at the provider, as in its tokens."
    )
    expected = models.CharField(
        max_length=150,
        blank=True,
        help_text="E-mail address to link at the first sign-in; empty once linked.",
    )
    how = models.CharField(max_length=20, choices=LinkOrigin)
    created_at = models.DateTimeField(auto_now_add=True)
    last_sign_in_at = models.DateTimeField(null=True, blank=True, help_text="Time of the last sign-in.")

    class Meta:
        ordering = ["provider", "user__username"]
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "subject"], condition=~Q(subject=""), name="identity_subject_unique"
            ),
            models.UniqueConstraint(
                fields=["provider", "expected"],
                condition=Q(subject="") & ~Q(expected=""),
                name="identity_expected_unique",
            ),
            models.UniqueConstraint(fields=["provider", "user"], name="identity_user_unique"),
            models.CheckConstraint(condition=~Q(subject="") | ~Q(expected=""), name="identity_of_somebody"),
        ]

    def __str__(self) -> str:
        return f"{self.user} at {self.provider}"


class GivenPlace(models.Model):
    """A membership given by rules of a provider. `before` is the role that the user had without them."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="given_places")
    provider = models.CharField(max_length=40)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="given_places")
    role = models.CharField(max_length=10, choices=Role)
    before = models.CharField(max_length=10, choices=Role, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "provider", "team"], name="given_place_unique")
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.team} by {self.provider}"


class GivenRole(models.Model):
    """A site role given by rules of a provider to a user who did not have it."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="given_roles")
    provider = models.CharField(max_length=40)
    role = models.CharField(max_length=20, choices=SiteRole)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "provider", "role"], name="given_role_unique")]

    def __str__(self) -> str:
        return f"{self.role} of {self.user} by {self.provider}"
