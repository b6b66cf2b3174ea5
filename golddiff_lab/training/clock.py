"""Training time that does not count the minutes in which the process was stopped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

OUTLIER = 10.0


class StepClock:
    """Sum of the durations of steps; one far longer than the recent ones counts as such a one.

    Args:
        elapsed: seconds counted before, of a run that is resumed.
        now: seconds of a clock that only goes forward.
    """

    def __init__(self, elapsed: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        self.elapsed = elapsed
        self._now, self._last = now, now()
        self._recent: deque[float] = deque(maxlen=25)

    def skip(self) -> None:
        """Leave out the time since the last tick, which was not a step's."""
        self._last = self._now()

    def tick(self) -> float:
        """End a step; the seconds that it counts for."""
        now = self._now()
        spent, self._last = now - self._last, now
        # A process that was stopped for minutes finds them all in one step.
        if len(self._recent) >= 5 and spent > OUTLIER * median(self._recent):
            spent = median(self._recent)
        else:
            self._recent.append(spent)
        self.elapsed += spent
        return spent
