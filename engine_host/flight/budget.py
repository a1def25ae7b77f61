"""How often a snapshot of the page map may be taken."""

from engine_host.flight.knobs import MAX_HZ

SHARE = 0.009
"""Most of a core's time that snapshots may take in the long run; bursts stay below the 1 % that is promised."""

BURST_S = 0.02
"""Snapshot time that can be saved up, in seconds: a few ends in a row are shown at once, and then the share holds."""


ROUNDING_S = 1e-9
"""What sums of times may be off by."""


class SnapshotBudget:
    """Allows `hz` periodic snapshots a second, and any number for events, as long as all stay within `SHARE`.

    Time not spent is saved up to `BURST_S`, or to the cost of one snapshot where that is more. All times are seconds
    of one monotonic clock.
    """

    def __init__(self, hz: float, now: float) -> None:
        self._interval = 1 / min(hz, MAX_HZ)
        self._cost = 0.0
        self._credit = 0.0
        self._credited = now
        self.next = now
        """When the next periodic snapshot may be taken, the share permitting. An attribute: each step reads it."""

    def set_rate(self, hz: float, now: float) -> None:
        """Change the rate of periodic snapshots; the share stays."""
        self._interval = 1 / min(hz, MAX_HZ)
        self.next = now + max(self._interval, self.wait(now))

    def wait(self, now: float) -> float:
        """Seconds until the share allows another snapshot; 0 if it does now."""
        earned = (now - self._credited) * SHARE
        self._credit = min(self._credit + earned, max(BURST_S, self._cost))
        self._credited = now
        missing = self._cost - self._credit
        return missing / SHARE if missing > ROUNDING_S else 0.0

    def charge(self, began: float, ended: float) -> None:
        """Account for a snapshot; the next is expected to cost as much."""
        self._cost = ended - began
        self._credit -= self._cost
        self.next = ended + max(self._interval, self.wait(ended))
