"""Dotfiles: a repository of personal settings that a user's workspaces clone."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from provisioning.git_urls import MAX_REF, MAX_URL


class UserDotfiles(models.Model):
    """A user's dotfiles. `secret` names the user's secret with its credentials; empty for none."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="dotfiles"
    )
    url = models.CharField(max_length=MAX_URL)
    ref = models.CharField(max_length=MAX_REF, blank=True)
    secret = models.CharField(max_length=64, blank=True)
    changed_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.url

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.url, self.ref, self.secret)
