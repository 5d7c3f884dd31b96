"""`berth secret …`: values are read from standard input and never printed."""

from __future__ import annotations

import io

from portal.common.encrypted_fields import decrypt
from portal.workspaces.secrets.models import Secret, purpose_of

VALUE = "planted-value-0f8a7c"


def feed(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_secret_is_saved_listed_and_deleted(as_bob, monkeypatch):
    feed(monkeypatch, f"{VALUE}\n".encode())
    ran = as_bob("secret", "set", "API_KEY", "--description", "For W&B", "--everywhere")
    assert (ran.code, ran.out) == (0, "Secret API_KEY saved.\n"), ran.err
    row = Secret.objects.get()
    assert decrypt(row.sealed, purpose=purpose_of(row)) == VALUE and row.everywhere
    feed(monkeypatch, b"-----KEY-----\n")
    assert as_bob("secret", "set", "DEPLOY_KEY", "--file", "--json").json["size_bytes"] == 14
    listed = as_bob("secret", "ls")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [
        ["API_KEY", "env"],
        ["DEPLOY_KEY", "file"],
    ]
    assert "planted" not in listed.out + as_bob("secret", "ls", "--json").out
    assert as_bob("secret", "rm", "API_KEY").code == 2
    assert as_bob("secret", "rm", "API_KEY", "--yes").out == "Secret API_KEY deleted.\n"
    assert as_bob("secret", "rm", "API_KEY", "--yes").code == 5


def test_invalid_secrets_are_refused(as_bob, monkeypatch):
    for data in (b"", b"\n", b"\xff\xfe"):
        feed(monkeypatch, data)
        assert as_bob("secret", "set", "API_KEY").code == 2
    feed(monkeypatch, VALUE.encode())
    refused = as_bob("secret", "set", "API_KEY", "--team", "vision")
    assert refused.code == 1 and VALUE not in refused.out + refused.err
    feed(monkeypatch, VALUE.encode())
    refused = as_bob("secret", "set", "PATH")
    assert refused.code == 1 and "PATH" in refused.err and VALUE not in refused.err
    assert not Secret.objects.exists()


def test_vault_path_of_a_secret(as_bob, monkeypatch, settings):
    settings.BERTH_VAULT_ADDR = "https://vault.example.org"
    ran = as_bob("secret", "set", "API_KEY", "--vault", "berth/users/bob/wandb#api_key")
    assert (ran.code, ran.out) == (0, "Secret API_KEY saved.\n"), ran.err
    row = Secret.objects.get()
    assert (row.vault_path, row.vault_key, row.sealed) == ("berth/users/bob/wandb", "api_key", "")
    assert "env, in Vault" in as_bob("secret", "ls").out
    for wrong in ("berth/users/bob/wandb", "#key", "berth/users/bob/wandb#"):
        assert as_bob("secret", "set", "OTHER", "--vault", wrong).code == 2
    assert as_bob("secret", "set", "OTHER", "--vault", "berth/users/alice/wandb#api_key").code == 1
