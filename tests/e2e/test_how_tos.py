"""The commands of tutorials and how-to guides, on a machine created for them.

docs/systemd.md and the pipelines of docs/ci.md have their own tests.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning.service.environ import ROOT
from tests.e2e import console
from tests.e2e.how_to_machine import HOST, HowToMachine, blocks, needs
from tests.instance import eventually, need_notebook_environment
from tests.systemd_machine import machine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("node-service"),
    pytest.mark.thorough("minutes in a machine with systemd; `make test` checks the documents' commands"),
]
TOKEN = """
from portal.people.accounts import tokens
from portal.people.accounts.models import User
from portal.common.actors import SYSTEM
from tests.populate import add_catalog
add_catalog()
print(tokens.create_token(actor=SYSTEM, user=User.objects.get(username="{name}"), name="tests").secret)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HowToMachine]:
    needs("ip", "curl", "openssl", "make", "git")
    with machine(tmp_path_factory.mktemp("how-to").resolve(), own_network=True) as found:
        yield HowToMachine(found)


@pytest.fixture(autouse=True)
def fresh(here: HowToMachine) -> None:
    here.fresh()


def token(here: HowToMachine, name: str = "admin") -> str:
    """A token that a user has created in the browser."""
    made = "; ".join(TOKEN.format(name=name).strip().splitlines())
    return here.do(f".venv/bin/python manage.py shell -v 0 -c '{made}'").split()[-1]


def ask(here: HowToMachine, secret: str, method: str, path: str, body: Any = None) -> Any:
    data = f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'" if body is not None else ""
    said = here.do(
        f"curl -s -m 20 -X {method} -H 'Authorization: Bearer {secret}' {data} localhost:8000/api/v1/{path}"
    )
    return json.loads(said) if said else None


def running(here: HowToMachine, secret: str, name: str) -> str:
    """Make a workspace and wait until it runs. Returns its path below /api/v1/."""
    body = {"template": "files", "flavor": "tiny", "name": name}
    where = f"workspaces/{ask(here, secret, 'POST', 'workspaces', body)['id']}"
    comes_to(here, secret, where, "running")
    return where


def comes_to(here: HowToMachine, secret: str, where: str, *states: str) -> None:
    eventually(
        lambda: ask(here, secret, "GET", where)["state"] in states,
        limit_s=90,
        what=lambda: str(ask(here, secret, "GET", where)),
    )


def people(here: HowToMachine, secret: str) -> set[str]:
    return {result["username"] for result in ask(here, secret, "GET", "users")["results"]}


def test_administrator_tutorial_and_monitoring(here: HowToMachine) -> None:
    up, create, as_a_file = blocks("tutorial-administrator")
    well, make_token, metrics = blocks("monitoring")
    here.do(up)
    assert "http://localhost:8000" in here.output() and "admin" in here.output()
    parts = json.loads(here.do(well))["parts"]
    assert parts and all(part["ok"] for part in parts), parts
    here.do(make_token)
    here.do(f"make down\n{up}")
    assert "berth_pool_online" in here.do(metrics)

    secret = token(here)
    ask(here, secret, "POST", "teams", {"slug": "vision", "name": "Vision"})
    assert here.do(create).count("/welcome/") == 1
    assert {"hugo"} <= people(here, secret)
    ask(here, secret, "POST", "quotas", {"team": "vision", "resource": "cpu", "quota": 4000})
    said = here.do(as_a_file, given=f"{secret}\n")
    assert "Signed in at http://localhost:8000 as admin." in said
    assert said.rstrip().endswith("No changes."), said
    assert "vision" in here.do("cat site.yaml")


def test_backup_restore_upgrade_and_rollback(here: HowToMachine) -> None:
    needs("rsync")
    back_up, copy, restore, upgrade, roll_back, rehearse = blocks("backup")
    here.do("make up")
    secret = token(here)
    where = running(here, secret, "kept")
    here.do("echo first > $(ls -d var/homes/*/* | head -1)/note.txt")
    here.do(back_up)
    here.do(copy)

    here.do(".venv/bin/python manage.py create_user later --team default")
    here.do("echo second > $(ls -d var/homes/*/* | head -1)/note.txt")
    here.do(restore)
    assert people(here, secret) == {"admin"}
    assert here.do("cat var/homes/*/*/note.txt") == "first\n"
    comes_to(here, secret, where, "failed", "stopped")
    assert re.search(r"entries under \d+ seals.*\nhead ", here.do(rehearse))

    here.do("rm -rf /tmp/rehearsal")
    before = next_version(here)
    here.do(upgrade)
    assert "9999_next_version" in here.do(".venv/bin/python manage.py showmigrations accounts")
    here.do(".venv/bin/python manage.py create_user newest --team default")
    here.do(roll_back.replace("THE-VERSION-BEFORE", before))
    assert people(here, secret) == {"admin"}
    shown = here.do(".venv/bin/python manage.py showmigrations accounts")
    assert "9999_next_version" not in shown and "[ ]" not in shown


def next_version(here: HowToMachine) -> str:
    """Commit a version with one more migration to be pulled; return the previous commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    name = "git -c user.name=Somebody -c user.email=somebody@example.org"
    here.environ["GIT_CONFIG_COUNT"] = "1"
    here.environ |= {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    here.do("git checkout -q -B how-to")
    # A checkout may be shallow.
    here.do("git init -q --bare /srv/origin.git && git -C /srv/origin.git config receive.shallowUpdate true")
    here.do("git push -q /srv/origin.git how-to")
    here.do("git remote remove origin || true")
    here.do("git remote add origin /srv/origin.git && git fetch -q && git branch -q -u origin/how-to")
    here.do("git clone -q -b how-to /srv/origin.git /srv/next")
    migration = "portal/people/accounts/migrations/9999_next_version.py"
    here.do(
        "cd /srv/next && "
        f'{ROOT}/.venv/bin/python -c "import os, sys; sys.path.insert(0, os.getcwd()); '
        "from django.core.management import execute_from_command_line as run; "
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'portal.settings'; "
        "run(['manage.py', 'makemigrations', 'accounts', '--empty', '-n', 'next_version', '-v', '0'])\" && "
        f"mv portal/people/accounts/migrations/*_next_version.py {migration}"
    )
    here.do(f"cd /srv/next && git add . && {name} commit -qm 'The next version' && git push -q origin how-to")
    return here.do("git rev-parse HEAD").strip()


VAULT = """
#!/bin/sh
# Stands in for the program of HashiCorp Vault: keeps what is given to it as a file.
cat > /run/vault-$(echo "$3" | tr / -)
"""


def test_console_commands_of_the_guides(here: HowToMachine) -> None:
    """`$ command` lines and what they print."""
    here.do("make up")
    secret = token(here)
    ask(here, secret, "POST", "teams", {"slug": "vision", "name": "Vision"})
    here.environ |= {"BERTH": "http://localhost:8000", "TOKEN": secret}
    # The token belongs to an owner of this team.
    here.do(".venv/bin/python manage.py create_user vera --team vision --role owner")
    own = token(here, "vera")
    here.environ |= {"BERTH_URL": "http://localhost:8000", "BERTH_TOKEN": own}
    write(here, "/usr/local/bin/vault", VAULT.lstrip())
    here.do("chmod 755 /usr/local/bin/vault")
    made_up = {
        "https://berth.example.org": re.escape("http://localhost:8000"),
        "berth_x3K9aQ": r"berth_[\w-]{6}",
    }
    try:
        running(here, own, "trial")
        home = here.do("ls -d var/homes/vision/*").strip()
        here.do(f"mkdir {home}/data && touch {home}/data/old.bin && echo weights > model.bin")
        here.do(f"chown -R --reference={home} {home}/data")
        here.do("berth stop trial --wait")
        # Trust rules and job tokens need an issuer on the internet.
        sessions = blocks("ci", "console")[:2]
        sessions += [
            session for name in ("webhooks", "people", "files") for session in blocks(name, "console")
        ]
        assert len(sessions) == 5
        for session in sessions:
            console.follow(session, here.do, made_up=made_up)
    finally:
        for name in ("BERTH", "TOKEN", "BERTH_URL", "BERTH_TOKEN"):
            here.environ.pop(name, None)


SELF_SIGNED = f"""
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={HOST} \\
    -addext subjectAltName=DNS:{HOST},DNS:*.{HOST} \\
    -keyout /etc/ssl/berth/key.pem -out /etc/ssl/berth/certificate.pem 2>&1
"""
SIGN_IN = f"""
import re, ssl, sys
import httpx
trusted = ssl.create_default_context(cafile="/etc/ssl/berth/certificate.pem")
way = httpx.HTTPTransport(verify=trusted, local_address="10.99.0.1")
referer = {{"Referer": "https://{HOST}/sign-in/"}}
with httpx.Client(base_url="https://{HOST}", transport=way, headers=referer) as browser:
    page = browser.get("/sign-in/").text
    token = re.search('name="csrfmiddlewaretoken" value="([^"]+)"', page)[1]
    given = {{"username": "admin", "password": sys.argv[1], "csrfmiddlewaretoken": token}}
    print(browser.post("/sign-in/", data=given).status_code)
    print(browser.get("/account/").text)
"""


def test_tls_with_nginx_and_with_caddy(here: HowToMachine) -> None:
    needs("nginx")
    proxy_secret, up, good = blocks("tls")
    here.do(SELF_SIGNED)
    here.do(f"mkdir -p var/secrets\n{proxy_secret}\n{up}")
    password = re.search(r"password: (\S+)", here.output())
    assert password
    secret = here.do("cat var/secrets/proxy_secret").strip()
    write(here, "/run/sign_in.py", SIGN_IN)
    here.environ["CURL_CA_BUNDLE"] = "/etc/ssl/berth/certificate.pem"
    [nginx], [caddy] = blocks("tls", "nginx"), blocks("tls", "caddy")
    write(here, "/etc/nginx/conf.d/berth.conf", nginx.replace("SECRET;", f"{secret};"))
    write(here, "/etc/caddy/Caddyfile", caddy)
    by_caddy = f"BERTH_PROXY_SECRET={secret} caddy start --config /etc/caddy/Caddyfile > /run/caddy.log 2>&1"
    ways = (("nginx", "nginx -s stop"), (by_caddy, "caddy stop --config /etc/caddy/Caddyfile"))
    try:
        for start, stop in ways:
            here.do(start)
            said = here.do(good)
            assert said.endswith("403\n") and json.loads(said[: said.rindex("403")])["parts"], said
            # A session shows the client's address, not the proxy's.
            shown = here.do(f".venv/bin/python /run/sign_in.py {password[1]}")
            assert shown.startswith("302") and "10.99.0.1" in shown and "127.0.0.1" not in shown, shown
            here.do(stop)
    finally:
        del here.environ["CURL_CA_BUNDLE"]


def test_postgresql_with_its_backup(here: HowToMachine) -> None:
    needs("pg_createcluster", "pg_lsclusters", "runuser")
    used = (ROOT, Path(sys.base_prefix), Path(sys.prefix), need_notebook_environment())
    opened = {folder for path in used for folder in path.resolve().parents}
    here.do(
        f"""
        useradd --create-home berth
        install -d -o berth -g berth {ROOT}/var && chown -R berth {ROOT}/var
        chmod o+x {" ".join(map(str, opened))}
        pg_dropcluster $(pg_lsclusters --no-header | awk 'NR == 1 {{print $1}}') main
        pg_createcluster $(ls /usr/lib/postgresql | sort -V | tail -1) main
        systemctl start postgresql
        """
    )
    here.do(blocks("postgresql")[0])
    [starts] = blocks("postgresql", "")
    [dump_and_restore] = [block for block in blocks("backup", "") if "pg_dump" in block]
    up = starts.splitlines()[0]
    here.do(up, user="berth")
    [database] = [each for each in health(here) if each["name"] == "database"]
    assert database["ok"] and database["detail"].startswith("postgresql"), database
    shell = f"{up.removesuffix('make up')}.venv/bin/python manage.py"
    here.do(f"{shell} create_user kept --team default", user="berth")
    here.environ["DATABASE_URL"] = "postgres:///berth"
    try:
        dump, restore = dump_and_restore.splitlines()
        here.do(f"cd var && {dump}", user="berth")
        here.do(f"{shell} create_user later --team default", user="berth")
        here.do("make down", user="berth")
        here.do(f"cd var && {restore}", user="berth")
        here.do(up, user="berth")
        assert all(each["ok"] for each in health(here))
        names = (
            "from portal.people.accounts.models import User; "
            "print(*User.objects.values_list('username', flat=True))"
        )
        shown = here.do(f'{shell} shell -v 0 -c "{names}"', user="berth").split()
        assert "kept" in shown and "later" not in shown, shown
        here.do("make down", user="berth")
    finally:
        del here.environ["DATABASE_URL"]


def health(here: HowToMachine) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = json.loads(here.do("curl -s localhost:8000/healthz"))["parts"]
    return parts


def write(here: HowToMachine, path: str, text: str) -> None:
    here.do(f"mkdir -p $(dirname {path}) && cat > {path}", given=text)
