"""Recent samples of one device, in a fixed amount of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from provisioning.gpu.samples import METRICS, Sample

CAPACITY = 900
"""15 minutes at one sample per second."""
_NO_THROTTLE = -1


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """Samples by time: `values` has a column for each of `METRICS`, NaN if not measured."""

    at_s: NDArray[np.float64]
    values: NDArray[np.float64]
    throttle: NDArray[np.int64]
    """The bit mask, -1 if unknown."""

    def __len__(self) -> int:
        return len(self.at_s)


class Ring:
    """Keeps the newest `capacity` samples. For a single writer; readers get copies."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError("the capacity must be at least 1")
        self._at_s = np.full(capacity, np.nan, np.float64)
        self._values = np.full((capacity, len(METRICS)), np.nan, np.float64)
        self._throttle = np.full(capacity, _NO_THROTTLE, np.int64)
        self._written = 0
        self._latest: Sample | None = None

    @property
    def nbytes(self) -> int:
        """Size of the arrays, which is constant."""
        return self._at_s.nbytes + self._values.nbytes + self._throttle.nbytes

    @property
    def latest(self) -> Sample | None:
        """The newest sample with its processes."""
        return self._latest

    def __len__(self) -> int:
        return min(self._written, len(self._at_s))

    def append(self, sample: Sample) -> None:
        row = self._written % len(self._at_s)
        self._at_s[row] = sample.at_s
        for column, name in enumerate(METRICS):
            value = getattr(sample, name)
            self._values[row, column] = np.nan if value is None else value
        self._throttle[row] = _NO_THROTTLE if sample.throttle is None else sample.throttle
        self._written += 1
        self._latest = sample

    def between(self, start_s: float, end_s: float) -> SampleWindow:
        """Return samples with `start_s` ≤ time < `end_s` by time, even if the clock was set back."""
        rows = np.flatnonzero((self._at_s >= start_s) & (self._at_s < end_s))
        # Age in order of writing, so that of two samples at the same time the later one stays last.
        age = (rows - self._written) % len(self._at_s)
        rows = rows[np.lexsort((age, self._at_s[rows]))]
        return SampleWindow(self._at_s[rows], self._values[rows], self._throttle[rows])
