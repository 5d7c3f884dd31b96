"""The `stage` fixture."""

from tests.permissions.stage import stage as stage
from tests.permissions.stage import world as world
