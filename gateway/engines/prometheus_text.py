"""The few metric families an adapter needs out of a worker's metrics page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from gateway.engines.base import Answers, Probe


@dataclass(frozen=True, slots=True)
class Series:
    """One time series' labels and value."""

    labels: Mapping[str, str]
    value: float


def series_of(answers: Answers, probe: Probe, name: str) -> tuple[Series, ...]:
    """All series of one metric; empty where the page or any of these series cannot be read.

    Only the metric's own lines are parsed: a busy engine's page has thousands of others.
    """
    answer = answers.get(probe)
    if answer is None or answer.status != 200:
        return ()
    page = answer.body.decode("utf-8", "replace")
    own = [line for line in page.split("\n") if line.startswith((name + "{", name + " "))]
    try:
        families = list(text_string_to_metric_families("\n".join(own)))
    except ValueError:
        return ()
    return tuple(
        Series(sample.labels, sample.value) for family in families for sample in family.samples
    )
