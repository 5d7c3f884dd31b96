"""The `stage` fixture."""

from tests.permissions.test_matrix import stage as stage
from tests.permissions.test_matrix import world as world
