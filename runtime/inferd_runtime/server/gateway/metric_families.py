"""Metric families of the Prometheus client, made from tables of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

MetricValues = Iterable[tuple[Sequence[str], float]]
"""Pairs of the labels' values and the figure."""


def family(name: str, text: str, labels: Sequence[str], values: MetricValues) -> Metric:
    """Return one family: a counter if its name ends in ``_total``, else a gauge. ``text`` is its help."""
    made = (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, text, labels=labels)
    for label_values, value in values:
        made.add_metric(label_values, value)
    return made
