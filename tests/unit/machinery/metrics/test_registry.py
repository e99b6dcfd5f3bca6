"""Metrics as a scraper sees them: Go's formatting, controller-runtime's names and zeros."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.machinery.metrics.process import octets
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.metrics.text_format import go_float


def lines_of(metrics: Metrics, start: str) -> list[str]:
    return [line for line in metrics.render().decode().splitlines() if line.startswith(start)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (-2.5, "-2.5"),
        (0.005, "0.005"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1e-08, "1e-08"),
        (9.999999999999999e-06, "9.999999999999999e-06"),
        (999999.0, "999999"),
        (1e6, "1e+06"),
        (1.79479936155e9, "1.79479936155e+09"),
        (-1234567.5, "-1.2345675e+06"),
        (2.0**64, "1.8446744073709552e+19"),
        (1e100, "1e+100"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_look_as_in_go(value: float, text: str) -> None:
    assert go_float(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_lose_nothing(value: float) -> None:
    assert float(go_float(value)) == value


def test_a_controller_is_at_zero_before_it_does_anything() -> None:
    metrics = Metrics()
    metrics.for_controller("trainjob")
    assert lines_of(metrics, "controller_runtime_reconcile_total") == [
        f'controller_runtime_reconcile_total{{controller="trainjob",result="{result}"}} 0'
        for result in ("error", "requeue_after", "requeue", "success")
    ]
    for name in ("reconcile_errors", "terminal_reconcile_errors", "reconcile_panics"):
        wanted = f'controller_runtime_{name}_total{{controller="trainjob"}} 0'
        assert lines_of(metrics, f"controller_runtime_{name}_total") == [wanted]
    assert lines_of(metrics, "controller_runtime_reconcile_timeouts_total") == [
        'controller_runtime_reconcile_timeouts_total{controller="trainjob"} 0'
    ]


def test_a_failed_reconcile_counts_as_a_result_and_as_an_error() -> None:
    metrics = Metrics()
    controller = metrics.for_controller("c")
    controller.reconciled("error", 0.2)
    controller.terminal()
    assert 'controller_runtime_reconcile_total{controller="c",result="error"} 1' in lines_of(
        metrics, "controller_runtime_reconcile_total"
    )
    assert lines_of(metrics, "controller_runtime_reconcile_errors_total")[0].endswith(" 1")
    assert lines_of(metrics, "controller_runtime_terminal_reconcile_errors_total")[0].endswith(" 1")
    bounds = lines_of(metrics, "controller_runtime_reconcile_time_seconds_bucket")
    assert bounds[5:7] == [
        'controller_runtime_reconcile_time_seconds_bucket{controller="c",le="0.15"} 0',
        'controller_runtime_reconcile_time_seconds_bucket{controller="c",le="0.2"} 1',
    ]


def test_a_webhook_is_at_zero_before_it_is_called() -> None:
    metrics = Metrics()
    metrics.for_webhook("/validate")
    assert lines_of(metrics, "controller_runtime_webhook_requests_total") == [
        f'controller_runtime_webhook_requests_total{{webhook="/validate",code="{code}"}} 0'
        for code in (200, 429, 500)
    ]
    assert lines_of(metrics, "controller_runtime_webhook_requests_in_flight") == [
        'controller_runtime_webhook_requests_in_flight{webhook="/validate"} 0'
    ]
    for name in ("webhook_panics_total", "conversion_webhook_panics_total"):
        assert lines_of(metrics, f"controller_runtime_{name}") == [f"controller_runtime_{name} 0"]


def test_alert_series_start_at_zero() -> None:
    metrics = Metrics()
    metrics.for_webhook("/validate")
    assert lines_of(metrics, "machinery_webhook_verdicts_total") == [
        f'machinery_webhook_verdicts_total{{webhook="/validate",code="{code}"}} 0'
        for code in (200, 403, 429, 500, 504)
    ]
    assert lines_of(metrics, "machinery_events_dropped_total") == [
        f'machinery_events_dropped_total{{reason="{reason}"}} 0'
        for reason in ("failed", "queue_full", "refused", "spam", "unreachable")
    ]


def test_response_is_counted_by_status_with_its_duration() -> None:
    metrics = Metrics()
    webhook = metrics.for_webhook("/validate")
    webhook.responded(200, 0.05)
    webhook.responded(413, 0.05)
    webhook.responded(413, 0.05)
    webhook.reviewed(429)
    webhook.panicked()

    def count(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    requests = "controller_runtime_webhook_requests_total"
    assert count(requests, webhook="/validate", code="200") == 1
    assert count(requests, webhook="/validate", code="413") == 2
    assert count("machinery_webhook_verdicts_total", webhook="/validate", code="429") == 1
    assert count("controller_runtime_webhook_panics_total") == 1
    bounds = lines_of(metrics, "controller_runtime_webhook_latency_seconds_bucket")
    assert bounds[6:8] == [
        'controller_runtime_webhook_latency_seconds_bucket{webhook="/validate",le="0.01"} 0',
        'controller_runtime_webhook_latency_seconds_bucket{webhook="/validate",le="0.1"} 3',
    ]


def test_queue_histograms_have_the_bounds_of_go() -> None:
    metrics = Metrics()
    metrics.for_queue("q").handed_out(0.5)
    bounds = [
        line.split('le="')[1].split('"')[0]
        for line in lines_of(metrics, "workqueue_queue_duration_seconds_bucket")
    ]
    assert bounds == [
        *("1e-08", "1e-07", "1e-06", "9.999999999999999e-06", "9.999999999999999e-05"),
        *("0.001", "0.01", "0.1", "1", "10", "100", "1000", "+Inf"),
    ]


def test_depth_is_labelled_by_a_limited_number_of_priorities() -> None:
    metrics = Metrics()
    queue = metrics.for_queue("q")
    for priority in range(30):
        queue.depth(priority, 1)
    queue.depth(29, -1)
    queue.depth(-100, 1)
    labels = {"name": "q", "controller": "q"}

    def depth(priority: str) -> float | None:
        return metrics.registry.get_sample_value(
            "workqueue_depth", {**labels, "priority": priority}
        )

    assert depth("24") == 1
    assert depth("25") is None
    assert depth("exceeded_cardinality_limit") == 5


def test_unfinished_work_is_computed_at_each_scrape() -> None:
    metrics = Metrics()
    ages = [1.0]
    metrics.for_queue("q").watch_unfinished(lambda: ages)
    ages.append(2.5)
    labels = '{name="q",controller="q"}'
    assert lines_of(metrics, "workqueue_unfinished") == [
        f"workqueue_unfinished_work_seconds{labels} 3.5"
    ]
    ages.clear()
    assert lines_of(metrics, "workqueue_longest") == [
        f"workqueue_longest_running_processor_seconds{labels} 0"
    ]


def test_there_are_no_created_series_and_each_type_is_named_once() -> None:
    metrics = Metrics()
    metrics.for_controller("c")
    metrics.observe_request("200", "GET", "10.0.0.1:443", 0.01)
    assert b"_created" not in metrics.render()
    types = lines_of(metrics, "# TYPE")
    assert len(types) == len(set(types))
    assert "# TYPE rest_client_requests_total counter" in types


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.leader('a"b\\c\nd', leading=True)
    assert lines_of(metrics, "leader_election") == [
        r'leader_election_master_status{name="a\"b\\c\nd"} 1'
    ]


def test_two_managers_do_not_share_metrics() -> None:
    one, other = Metrics(), Metrics()
    one.for_controller("c").reconciled("success", 1)
    assert lines_of(other, "controller_runtime_reconcile_total") == []


def test_the_process_is_measured() -> None:
    rendered = Metrics().render().decode()
    for name in (
        *("cpu_seconds_total", "open_fds", "max_fds", "virtual_memory_bytes"),
        *("virtual_memory_max_bytes", "resident_memory_bytes", "start_time_seconds"),
        *("network_receive_bytes_total", "network_transmit_bytes_total"),
    ):
        assert f"\nprocess_{name} " in rendered


def test_network_traffic_is_read_from_procfs() -> None:
    text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 34 56\n"
    assert octets(text) == (34, 56)
    assert octets("TcpExt: A\nTcpExt: 1\n") is None


def test_an_event_loop_that_is_early_has_no_lag() -> None:
    metrics = Metrics()
    metrics.loop_lag(-0.1)
    assert metrics.registry.get_sample_value("machinery_event_loop_lag_seconds_sum") == 0
