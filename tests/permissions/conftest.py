"""The stage of the matrix, for the other tests of this folder."""

from tests.permissions.test_matrix import stage as stage
from tests.permissions.test_matrix import world as world
