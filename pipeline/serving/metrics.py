"""Counts requests and their times, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

# Upper bounds of the times of requests that are counted, in seconds.
BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The requests since the start.

    Attributes:
        rows: number of rows that were answered, by where from: "known" or "live".
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter(known=0, live=0)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests[route, status] += 1
        self._times.setdefault(route, [0] * (len(BOUNDS) + 1))[bisect_left(BOUNDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment] # a counter of floats

    def text(self, gauges: Mapping[str, float]) -> str:
        """Write all of it.

        Args:
            gauges: further numbers, by their names.
        """
        lines = ["# TYPE parallel_epochs_requests_total counter"]
        lines += [
            f'parallel_epochs_requests_total{{route="{route}",status="{status}"}} {number}'
            for (route, status), number in sorted(self._requests.items())
        ]
        lines += ["# TYPE parallel_epochs_rows_total counter"]
        lines += [
            f'parallel_epochs_rows_total{{source="{source}"}} {number}'
            for source, number in self.rows.items()
        ]
        name = "parallel_epochs_request_seconds"
        lines += [f"# TYPE {name} histogram"]
        for route, times in sorted(self._times.items()):
            *inner, total = accumulate(times)
            lines += [
                f'{name}_bucket{{route="{route}",le="{bound}"}} {number}'
                for bound, number in zip((*BOUNDS, "+Inf"), (*inner, total))
            ]
            lines += [
                f'{name}_sum{{route="{route}"}} {self._seconds[route]:.6f}',
                f'{name}_count{{route="{route}"}} {total}',
            ]
        for gauge, value in gauges.items():
            lines += [f"# TYPE parallel_epochs_{gauge} gauge", f"parallel_epochs_{gauge} {value:g}"]
        return "\n".join([*lines, ""])
