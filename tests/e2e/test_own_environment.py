"""A package list with one wrong name: log line, correction, template, flavor, and a member's start.

On pages, over REST and by `berth apply`, with real builds of a tiny package. The page test uses the machine's
package index and is skipped without one; the others share an instance with an index in a folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from provisioning.service.environ import ROOT
from tests import instance
from tests.browser import sign_in
from tests.e2e.conftest import SHOTS, Curl
from tests.e2e.test_browser import chosen
from tests.instance import Api, Berth, eventually
from tests.provisioning.environments.package_index import PackageFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough("a Berth and an index of its own; `make test` builds in tests/provisioning"),
]
WRONG = "no-such-package-of-berth"
BUILD_LIMIT_S = 180
SERVE = ["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", "{home}"]
PROOF = "proof-of-{name}.txt"


def startup(name: str) -> str:
    """A startup script that fails without the package, and leaves proof in the home."""
    return f'python3 -c "import six; print(six.__name__)" > "$HOME/{PROOF.format(name=name)}"\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Berth]:
    """An instance with packages from a folder."""
    packages = PackageFolder(tmp_path_factory.mktemp("index") / "packages")
    packages.wheel("pip")
    packages.wheel("six")
    settings = {
        "BERTH_NODE_PACKAGE_INDEX": packages.url, "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "",
        "UV_FIND_LINKS": "", "BERTH_DISK_RESERVE_MIB": "0",
    }  # fmt: skip
    with instance.running(tmp_path_factory.mktemp("own"), environment=None, **settings) as found:
        yield found


@pytest.fixture(scope="module")
def site_admin(site: Berth) -> Iterator[Api]:
    yield from administrator(site)


@pytest.fixture
def site_ben(site: Berth) -> Iterator[Api]:
    """The member there."""
    yield from member(site)


@pytest.fixture(scope="module")
def admin(berth: Berth) -> Iterator[Api]:
    """The administrator's API, if the package index answers."""
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
    if index.startswith("http"):
        try:
            urllib.request.urlopen(f"{index.rstrip('/')}/six/", timeout=10).close()
        except OSError as error:
            pytest.skip(f"no package index answers here: {error}")
    yield from administrator(berth)


def administrator(berth: Berth) -> Iterator[Api]:
    api = Api(berth, berth.manage("create_token", "admin"))
    yield api
    api.close()


@pytest.fixture
def ben(berth: Berth) -> Iterator[Api]:
    """The API of a member; his workspaces are deleted afterwards."""
    yield from member(berth)


def member(berth: Berth) -> Iterator[Api]:
    api = berth.api("ben")
    yield api
    for row in api.json("GET", "workspaces")["results"]:
        api.act(row["id"], "delete")
        api.wait(row["id"], "terminated", limit_s=30)
    api.close()


def ended_build(admin: Api, slug: str, version: int) -> dict[str, Any]:
    """The build of a version, once finished."""

    def look() -> dict[str, Any] | None:
        rows = admin.json("GET", f"environments/{slug}/builds")["results"]
        mine = [row for row in rows if row["version"] == version]
        return mine[0] if mine and mine[0]["state"] in ("ready", "failed", "cancelled") else None

    return eventually(look, limit_s=BUILD_LIMIT_S, what=f"version {version} of {slug} has been built or not")


def is_refused_with_its_line(admin: Api, slug: str) -> None:
    """The first version names the wrong package, its line in the list and in the log."""
    build = ended_build(admin, slug, 1)
    assert build["state"] == "failed"
    assert build["failure"]["code"] == "build_no_such_package", build["message"]
    assert build["failure"]["params"]["source_line"] == 2
    assert WRONG in build["message"] and "line 2" in build["message"]
    of_build, line = f"environments/{slug}/builds/{build['id']}", build["failure"]["params"]["log_line"]
    assert WRONG in line
    assert line in " ".join(admin.ask("GET", f"{of_build}/log").text.split())
    # The stream has the whole log and ends with the build.
    events = admin.ask("GET", f"{of_build}/stream", Accept="text/event-stream").text.splitlines()
    sent = [json.loads(event.removeprefix("data:")) for event in events if event.startswith("data:")]
    assert line in " ".join("".join(each.get("log", "") for each in sent).split())
    assert sent[-1]["state"] == "failed"


def member_starts(berth: Berth, ben: Api, name: str) -> None:
    """Start a workspace as a member; check that it answers and its start found the package."""
    order = {"team": "lab", "template": name, "flavor": name}
    assert ben.json("POST", "admission/preview", order)["outcome"] == "fits_now"
    made = ben.create(name, name, name=name)
    ben.wait(made["id"], "running", limit_s=90)
    assert ben.workspace(made["id"])["environment"] == name
    sees_the_proof(berth, made["id"], name)


def sees_the_proof(berth: Berth, workspace_id: str, name: str) -> None:
    curl = Curl(berth, berth.tokens["ben"])

    def look() -> bool:
        answer = curl("GET", "/" + PROOF.format(name=name), host=berth.host(workspace_id))
        return answer.status == 200 and answer.body.strip() == "six"

    eventually(look, limit_s=20, what="the workspace shows what its start has written")


def template_of(name: str) -> dict[str, Any]:
    return {
        "name": f"{name} app",
        "program": "python3",
        "argv": SERVE,
        "startup": startup(name),
        "environment": name,
        "ready_path": "/",
        "open_path": "/",
    }


def test_environment_is_corrected_and_used_over_rest(site: Berth, site_admin: Api, site_ben: Api) -> None:
    berth, admin, ben = site, site_admin, site_ben
    name = "own-by-rest"
    body = {"name": name, "slug": name, "source": f"six\n{WRONG}\n", "notebook": False}
    admin.json("POST", "environments", body)
    is_refused_with_its_line(admin, name)
    assert ben.ask("POST", f"environments/{name}/builds", {"source": "six\n"}).status_code == 403
    admin.json("POST", f"environments/{name}/builds", {"source": "six\n"})
    assert ended_build(admin, name, 2)["state"] == "ready"
    admin.json("POST", "templates", {"slug": name, **template_of(name)})
    admin.json(
        "POST",
        "flavors",
        {"slug": name, "name": name, "resources": {"cpu_milli": 100, "memory_mib": 256}},
    )
    member_starts(berth, ben, name)


def test_environment_is_corrected_and_used_by_apply(
    site: Berth, site_admin: Api, site_ben: Api, tmp_path: Path
) -> None:
    berth, admin, ben = site, site_admin, site_ben
    name = "own-by-apply"
    file = tmp_path / "site.yaml"

    def berth_cli(*arguments: str, account: Api = admin) -> subprocess.CompletedProcess[str]:
        variables = {"BERTH_URL": f"http://127.0.0.1:{berth.port}", "BERTH_TOKEN": account.token}
        return subprocess.run(
            [sys.executable, "-m", "portal.cli.main", *arguments],
            capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, **variables},
        )  # fmt: skip

    def write(packages: tuple[str, ...]) -> None:
        document = {
            "berth": 1,
            "environments": {
                name: {
                    "name": name,
                    "notebook": False,
                    "source_kind": "packages",
                    "source": "".join(f"{package}\n" for package in packages),
                }
            },
            "flavors": {name: {"name": name, "cpu_milli": 100, "memory_mib": 256}},
            "templates": {name: template_of(name)},
        }
        file.write_text(json.dumps(document))  # JSON is valid YAML

    write(("six", WRONG))
    of_file = ("-f", str(file))
    applied = berth_cli("apply", *of_file)
    assert applied.returncode == 0 and name in applied.stdout, applied
    is_refused_with_its_line(admin, name)
    # `berth` shows the line in a terminal, too.
    again = berth_cli("environments", "build", name, "--wait")
    assert again.returncode == 1 and "<-- failed here" in again.stderr, again
    assert "line 2" in again.stderr and WRONG in again.stderr, again

    write(("six",))
    planned = berth_cli("plan", *of_file)
    assert planned.returncode == 2 and name in planned.stdout, planned
    assert berth_cli("apply", *of_file).returncode == 0
    assert ended_build(admin, name, 2)["state"] == "ready"
    assert berth_cli("plan", *of_file).returncode == 0
    started = berth_cli("up", "--template", name, "--flavor", name, "--name", name, "--wait", account=ben)
    assert started.returncode == 0, started
    (made,) = ben.json("GET", "workspaces")["results"]
    assert (made["name"], made["environment"], made["state"]) == (name, name, "running")
    sees_the_proof(berth, made["id"], name)


def shot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"own-environment-{name}.png", full_page=True)


@pytest.mark.browser
def test_environment_is_corrected_and_used_on_pages(
    berth: Berth, admin: Api, ben: Api, browser: Browser
) -> None:
    name = "own-by-pages"
    context = browser.new_context(base_url=berth.url)
    page = context.new_page()
    sign_in(page, berth.url, "admin")
    page.get_by_role("link", name="Environments", exact=True).first.click()
    page.get_by_role("link", name="New environment").click()
    page.fill("#id_name", name)
    page.fill("#id_source", f"six\n{WRONG}\n")
    page.locator("#id_notebook").uncheck()
    page.get_by_role("button", name="Create and build").click()
    # The page updates without a reload.
    problem = page.locator("#mending")
    problem.wait_for(timeout=BUILD_LIMIT_S * 1000)
    assert WRONG in problem.inner_text() and "Line 2" in problem.inner_text()
    shot(page, "failed")
    problem.get_by_role("link", name="View log").click()
    page.locator("pre.log mark.wrong", has_text=WRONG).wait_for()
    shot(page, "log")
    page.get_by_role("link", name="Edit and build again").click()
    assert page.locator("#mending .wrong-line").first.inner_text() == WRONG
    shot(page, "list")
    page.fill("#id_source", "six\n")
    page.get_by_role("button", name="Build new version").click()
    make = page.get_by_role("link", name="Create template")
    make.wait_for(timeout=BUILD_LIMIT_S * 1000)
    shot(page, "ready")
    make.click()
    for field, value in {
        "slug": name,
        "name": f"{name} app",
        "program": "python3",
        "argv": "\n".join(SERVE),
        "startup": startup(name),
    }.items():
        # Rare fields are in closed sections.
        section = page.locator("details", has=page.locator(f"#id_{field}"))
        section.evaluate_all("sections => sections.forEach(section => { section.open = true })")
        page.fill(f"#id_{field}", value)
    assert page.locator("#id_environment").input_value() == name
    page.get_by_role("button", name="Create template").click()
    page.get_by_role("heading", name=f"{name} app", exact=True).wait_for()
    shot(page, "template")
    page.goto("/catalog/flavors/new/")
    for field, value in {"slug": name, "name": name, "cpu_milli": "0.1", "memory_mib": "0.25"}.items():
        page.fill(f"#id_{field}", value)
    page.get_by_role("button", name="Create flavor").click()
    page.get_by_role("heading", name=name, exact=True).wait_for()
    context.close()

    context = browser.new_context(base_url=berth.url)
    page = context.new_page()
    sign_in(page, berth.url, "ben")
    page.get_by_role("link", name=re.compile("^New( workspace)?$")).first.click()
    shot(page, "new")
    for field in ("template", "flavor"):
        page.locator(f"input[name={field}][value={name}]").check(force=True)
        chosen(page, field, name)
    shot(page, "member")
    # Not the environment of his last choice, which belongs to another template.
    assert page.locator("#environment").input_value() == ""
    page.locator("#start").click()
    page.wait_for_url(re.compile(r"/workspaces/[0-9a-f-]+/\?open=1|//ws-"), wait_until="commit")
    page.wait_for_url(re.compile(r"^http://ws-[0-9a-f]{32}\.localhost:"), timeout=90_000)
    page.get_by_role("link", name=PROOF.format(name=name)).wait_for()
    shot(page, "workspace")
    context.close()
    (started,) = ben.json("GET", "workspaces")["results"]
    assert started["environment"] == name
    sees_the_proof(berth, started["id"], name)
