"""`manage.py reseal_texts` rewrites every encrypted text with the current key."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command

from portal.common import encrypted_fields
from portal.common.encrypted_fields import Unreadable, decrypt, encrypt
from portal.notify.channels.models import Channel
from portal.notify.channels.services import URL
from portal.notify.webhooks import services as webhooks
from portal.notify.webhooks.models import Endpoint
from portal.workspaces.secrets import services
from portal.workspaces.secrets.models import Secret, purpose_of

pytestmark = pytest.mark.django_db


def test_all_encrypted_columns_are_rewritten_with_the_current_key(alice, team, settings, capsys):
    services.put_secret(actor=alice, holder=alice, name="API_KEY", value="planted-value")
    Channel.objects.create(
        user=alice, name="Phone", service="ntfy", url=encrypt("x://", purpose=URL), kinds=[]
    )
    webhooks.create(
        actor=alice, team=team, name="Bot", url="https://example.org/", types=["workspace.failed"]
    )
    before = Secret.objects.get().sealed
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another secret key, of some length too"
    call_command("reseal_texts")
    settings.SECRET_KEY_FALLBACKS = []
    secret = Secret.objects.get()
    assert secret.sealed != before and decrypt(secret.sealed, purpose=purpose_of(secret)) == "planted-value"
    assert secret.version == 1
    assert decrypt(Channel.objects.get().url, purpose=URL) == "x://"
    assert decrypt(Endpoint.objects.get().secret, purpose=webhooks.SECRET).startswith("whsec_")
    assert "planted" not in capsys.readouterr().out
    with pytest.raises(Unreadable):
        decrypt(before, purpose=purpose_of(secret))


def test_undecryptable_secrets_are_reported_and_skipped(alice):
    services.put_secret(actor=alice, holder=alice, name="API_KEY", value="planted-value")
    Secret.objects.update(sealed="gAAAAA")
    with pytest.raises(CommandError):
        call_command("reseal_texts")
    assert Secret.objects.get().sealed == "gAAAAA"


def test_every_encrypted_column_is_listed():
    """New models with encrypted columns must be listed; they are found by column names."""
    listed = {(column.model, column.field) for column in encrypted_fields.COLUMNS}
    hidden = {
        (model, field.name)
        for model in apps.get_models()
        for field in model._meta.fields
        if not field.editable
        and field.get_internal_type() == "TextField"
        and model.__module__.startswith("portal.")
    }
    assert hidden <= listed
