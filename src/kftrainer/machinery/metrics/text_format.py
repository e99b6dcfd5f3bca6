"""Prometheus text format exactly as Go programs write it, so that existing queries match."""

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FIRST_LARGE = 1_000_000  # from here on Go writes an exponent
FIRST_SMALL_EXPONENT = -4  # below this one, too


def go_float(value: float) -> str:
    """Format a number as Go does: `1`, `0.005`, `1e+06`, `9.999e-06`, `+Inf`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value.is_integer() and abs(value) < FIRST_LARGE:
        return str(int(value))
    shortest = Decimal(repr(value)).normalize()
    exponent = shortest.adjusted()
    if exponent >= FIRST_SMALL_EXPONENT and abs(value) < FIRST_LARGE:
        return f"{shortest:f}"
    digits = "".join(map(str, shortest.as_tuple().digits))
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{'-' if value < 0 else ''}{mantissa}e{exponent:+03d}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _label(name: str, value: str, *, is_bound: bool) -> str:
    text = go_float(float(value)) if is_bound else _escaped(value).replace('"', r"\"")
    return f'{name}="{text}"'


def _line(sample: Sample, *, histogram: bool) -> str:
    labels = ",".join(
        _label(name, value, is_bound=histogram and name == "le")
        for name, value in sample.labels.items()
    )
    name = f"{sample.name}{{{labels}}}" if labels else sample.name
    return f"{name} {go_float(float(sample.value))}"


def _family(metric: Metric) -> Iterator[str]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    yield f"# HELP {name} {_escaped(metric.documentation)}"
    yield f"# TYPE {name} {metric.type}"
    for sample in metric.samples:
        # Creation times are specific to prometheus_client; Go's clients do not export them.
        if not sample.name.endswith("_created"):
            yield _line(sample, histogram=metric.type == "histogram")


def exposition(registry: CollectorRegistry) -> bytes:
    """Render the registry; families without series are omitted, as in Go."""
    families: Iterable[Metric] = sorted(registry.collect(), key=lambda metric: metric.name)
    lines = [line for metric in families if metric.samples for line in _family(metric)]
    return "".join(f"{line}\n" for line in lines).encode()
