"""Users, teams, pools, and a broker and a clock that the test controls."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import addresses, postgresql, shared_ssl_context
from tests.browser import browser as browser  # a fixture for all folders: a process has only one instance
from tests.fixtures import ada as ada
from tests.fixtures import configure as configure
from tests.fixtures import eight as eight
from tests.fixtures import fay as fay
from tests.fixtures import petra as petra
from tests.fixtures import providers as providers
from tests.fixtures import shared_berth as shared_berth
from tests.fixtures import una as una
from tests.fixtures import vault as vault

if TYPE_CHECKING:
    import time_machine
    from django.test import Client

    from portal.fleet.inventory.models import Pool
    from portal.people.accounts.models import Team, User
    from portal.workspaces.models import Workspace
    from tests.broker import Broker
    from tests.sites import Site
    from tests.worlds import World

_scratch: Path | None = None
# No test starts builds in the background.
os.environ["BERTH_SKIP_DATA_SCIENCE"] = "1"
NO_REDIS = "redis://127.0.0.1:1/0"
# Collection and imports create a million objects, none of which is garbage.
gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settings for tests; concurrent runs have separate databases."""
    global _scratch
    from django.conf import settings

    _scratch = Path(tempfile.mkdtemp(prefix="berth-test-"))
    database = settings.DATABASES["default"]
    database.setdefault("TEST", {})
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["TEST"]["NAME"] = str(_scratch / "test.sqlite3")
    else:
        database["TEST"]["NAME"] = f"test_berth_{os.getpid()}"
        database["HOST"] = os.environ.get(postgresql.SOCKET) or database["HOST"]
    settings.BERTH_HOME = _scratch
    settings.BERTH_SKIP_DATA_SCIENCE = True
    settings.SECRET_KEY = "a secret key for tests alone, of some length"
    settings.BERTH_GATEWAY_SECRET = "a gateway secret for tests alone"
    settings.BERTH_CONTROL_KEY = "c0" * 32
    settings.BERTH_NODE_KEYS_DIR = _scratch / "keys" / "nodes"
    settings.BERTH_REDIS_URL = settings.CELERY_BROKER_URL = NO_REDIS
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # Static files come from the source tree: no test needs collectstatic.
    settings.STATIC_ROOT = None
    settings.WHITENOISE_USE_FINDERS = True
    # Each test client creates the middleware, which would read all files.
    settings.WHITENOISE_AUTOREFRESH = True
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    _run_callbacks_where_a_commit_would_be(database)
    from tests.databases.emptying import keep_what_migrate_made

    keep_what_migrate_made()
    from hypothesis import HealthCheck
    from hypothesis import settings as hypothesis

    from tests.suite.choice import examples

    # No deadline: a busy machine is not a reason to fail, and the run lists slow tests. Examples are the same
    # in every run, so that results do not depend on chance; BERTH_TEST_EXPLORE tries new ones.
    hypothesis.register_profile(
        "berth",
        max_examples=examples(100),
        deadline=None,
        derandomize="BERTH_TEST_EXPLORE" not in os.environ,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    hypothesis.load_profile("berth")
    if "BERTH_TEST_EXPLORE" not in os.environ:
        _try_no_constants_of_imported_modules()


def _try_no_constants_of_imported_modules() -> None:
    """Keep Hypothesis from trying constants of imported modules, which depend on earlier tests.

    Reading the modules also costs time in each process.
    """
    from hypothesis.internal.conjecture import providers

    providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude the collected objects from garbage collection."""
    shared_ssl_context.share()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Unmount everything in folders that pytest removes, of this run and of killed runs."""
    from tests import mounts

    factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    own = factory._basetemp
    if own is not None:
        mounts.detach(own)
        if factory._given_basetemp is None:
            mounts.detach_abandoned(own.parent)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _scratch is not None:
        shutil.rmtree(_scratch, ignore_errors=True)


def _run_callbacks_where_a_commit_would_be(database: dict[str, Any]) -> None:
    """Use the backends of `tests.databases`; drop the connection opened by `django.setup`."""
    from django.db import connections

    database["ENGINE"] = database["ENGINE"].replace("django.db.backends", "tests.databases")
    del connections["default"]


@pytest.fixture(autouse=True)
def _broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker | None:
    """Replace Redis, except in tests marked `engine`, which start their own."""
    if request.node.get_closest_marker("engine"):
        return None
    from tests.broker import Broker

    return Broker.in_place_of_redis(monkeypatch)


@pytest.fixture(autouse=True)
def _addresses_stay_for_a_browser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Network addresses are stable while a test uses a browser; module fixtures may add some before."""
    if request.node.get_closest_marker("browser") is None:
        yield
        return
    with addresses.staying():
        yield


@pytest.fixture(autouse=True)
def _snapshots_of_this_test() -> Iterator[None]:
    """Snapshots are cached as in production, but not beyond rows that a test rolls back."""
    from portal.scheduling import snapshot_cache

    yield
    snapshot_cache.forget()


@pytest.fixture(scope="module")
def shared_world(request: pytest.FixtureRequest) -> Iterator[World[Site] | None]:
    """The site that the module selects by WORLD (`tests/sites.py`), created once; None without WORLD."""
    set_up = getattr(request.module, "WORLD", None)
    if set_up is None:
        yield None
        return
    from tests.worlds import shared

    request.getfixturevalue("django_db_setup")
    with shared(request.getfixturevalue("django_db_blocker"), set_up) as world:
        yield world


@pytest.fixture
def shared_site(request: pytest.FixtureRequest, shared_world: World[Site] | None) -> Iterator[Site]:
    """The rows of the module's WORLD, unchanged by other tests; empty in a module without WORLD."""
    from tests.sites import Site as SiteClass

    if shared_world is None:
        yield SiteClass()
        return
    request.getfixturevalue("db")
    with shared_world.met() as site:
        yield site


@pytest.fixture
def sent(_broker: Broker | None) -> Broker:
    """The pending messages to workers; the test delivers them."""
    assert _broker is not None, "a test marked engine has a broker of its own"
    return _broker


@pytest.fixture
def run_node(sent: Broker) -> Callable[[], int]:
    """Deliver all due messages, as the workers of both planes would."""
    return sent.run


@pytest.fixture
def clock(shared_site: Site) -> Iterator[time_machine.Traveller]:
    """A clock that advances only by `clock.shift(seconds)`."""
    import datetime as dt

    import time_machine

    with time_machine.travel(dt.datetime.now(dt.UTC), tick=False) as traveller:
        yield traveller


@pytest.fixture
def settle(sent: Broker, clock: time_machine.Traveller) -> Callable[..., int]:
    """Advance time with workers and sweep running, until nothing is due or `seconds` have passed."""
    from portal.workspaces.models import Workspace
    from tests.sweeps import sweep

    def until(seconds: int = 120, *, resting: Callable[[], bool] | None = None) -> int:
        def done() -> bool:
            if resting is not None:
                return resting()
            from portal.workspaces.lifecycle import TRANSITIONAL

            return not Workspace.objects.filter(state__in=TRANSITIONAL).exists()

        for passed in range(seconds + 1):
            sent.run()
            sweep()
            sent.run()
            if done():
                return passed
            clock.shift(1)
        return seconds

    return until


@pytest.fixture
def alice(db: None, shared_site: Site) -> User:
    """Owner of the team vision."""
    if shared_site.alice:
        return shared_site.alice
    from tests.factories import UserFactory

    return UserFactory(username="alice")


@pytest.fixture
def bob(db: None, shared_site: Site) -> User:
    """Member of the team vision."""
    if shared_site.bob:
        return shared_site.bob
    from tests.factories import UserFactory

    return UserFactory(username="bob")


@pytest.fixture
def charlie(db: None) -> User:
    """An outsider with a team of his own."""
    from tests.factories import outsider

    return outsider()


@pytest.fixture
def olga(db: None) -> User:
    """Operator; in no team."""
    from tests.factories import UserFactory

    return UserFactory(username="olga", is_operator=True)


@pytest.fixture
def team(alice: User, bob: User, shared_site: Site) -> Team:
    """vision: alice owns it, bob is a member."""
    if shared_site.team:
        return shared_site.team
    from tests.factories import vision

    return vision(owner=alice, member=bob)


@pytest.fixture
def catalog(db: None, shared_site: Site) -> None:
    """The starting catalog: templates jupyterlab, marimo, vscode; flavors cpu-small, cpu-large."""
    if shared_site.catalog:
        return
    from portal.catalog.services import ensure_starting_catalog

    ensure_starting_catalog()


@pytest.fixture
def pool(catalog: None, shared_site: Site, tmp_path: Path) -> Pool:
    """The simulated pool `sim`: 2 nodes with 4 × H100; flavors sim-cpu, sim-h100-x1, -x2, -x4."""
    from tests.factories import rescript, simulated_pool

    state = str(tmp_path / "sim")
    if shared_site.pool:
        rescript(shared_site.pool, state=state)
        return shared_site.pool
    return simulated_pool(state)


@pytest.fixture
def local_pool(catalog: None, shared_site: Site) -> Pool:
    """The pool this-machine with the node node-1: 8 cores, 16 GiB, every program. No real processes."""
    if shared_site.local_pool:
        return shared_site.local_pool
    from tests.factories import local_pool_with, node_info

    return local_pool_with(node_info())


@pytest.fixture
def make(team: Team, catalog: None) -> Callable[..., Workspace]:
    """Create a workspace through the service: `make(alice, "sim-cpu")`; the template is JupyterLab."""
    from portal.catalog.models import Flavor, Template
    from portal.people.accounts.models import User as UserModel
    from tests.factories import create_workspace

    def create(
        actor: UserModel, flavor: str = "cpu-small", *, template: str = "jupyterlab", **fields: Any
    ) -> Workspace:
        return create_workspace(
            actor=actor,
            team=fields.pop("team", team),
            template=Template.objects.get(slug=template),
            flavor=Flavor.objects.get(slug=flavor),
            **fields,
        )

    return create


@pytest.fixture
def as_user() -> Callable[..., Client]:
    """A browser signed in as the user, or signed out for None."""
    from django.test import Client as TestClient

    def sign_in(user: User | None = None) -> Client:
        client = TestClient()
        if user is not None:
            client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return sign_in


@pytest.fixture
def with_token() -> Callable[..., Client]:
    """A client with a new token of the user: `with_token(alice, "workspaces:read")`."""
    from django.test import Client as TestClient

    from tests.factories import make_token

    def bearer(user: User, *scopes: str) -> Client:
        _, secret = make_token(user, *scopes)
        return TestClient(headers={"Authorization": f"Bearer {secret}"})

    return bearer
