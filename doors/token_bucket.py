"""A token bucket: how fast something may come, with a burst now and then. Pure."""


class TokenBucket:
    """Lets `per_s` a second through, and up to `burst` at once."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take `amount` at the time `now`; the seconds that whoever takes has to wait."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        return max(0.0, -self._left / self._per_s)
