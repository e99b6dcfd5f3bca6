"""The Grafana dashboard of the chart."""

from generate.grafana import Json, Panel, Query, Row, Variable, dashboard

UID = "kftrainer"
JOB = 'job="$job"'
# Only the leader exports TrainJob metrics; during a change of leader both replicas may.
JOB_NS = f'{JOB},namespace=~"$namespace"'
ONCE = "max by (namespace, runtime, state)"
NOT_ENDED = 'state!~"Complete|Failed"'
# The counter appears with the first denial by a rule, which a rate would miss.
DENIALS = f"kftrainer_admission_denials_total{{{JOB}}}"
DURATION = "kftrainer_trainjob_duration_seconds"
ENDED = f"{DURATION}_count"
COMPLETE = 'result="Complete"'
RATE = "$__rate_interval"
RECENT = "30m"  # TrainJobs are few: a shorter time would often have none
STATES = {
    "Pending": "yellow",
    "Running": "blue",
    "Suspended": "purple",
    "Blocked": "orange",
    "Complete": "green",
    "Failed": "red",
}

VARIABLES = (
    Variable("datasource", "Data source", "prometheus", is_source=True),
    Variable("job", "Job", "label_values(kftrainer_build_info, job)"),
    Variable(
        "namespace",
        "Namespace",
        f"label_values(kftrainer_trainjobs{{{JOB}}}, namespace)",
        is_multi_value=True,
    ),
)


def quantile(share: float, metric: str, by: str = "", *, more: str = "", over: str = RATE) -> str:
    """Return a quantile of a histogram, for each value of a label if one is given."""
    labels = f"{by}, le" if by else "le"
    selector = f"{JOB},{more}" if more else JOB
    return (
        f"histogram_quantile({share:g}, "
        f"sum by ({labels}) (rate({metric}_bucket{{{selector}}}[{over}])))"
    )


def quantiles(metric: str, *, more: str = "", over: str = RATE) -> tuple[Query, ...]:
    """Return the median and the 95th percentile."""
    return tuple(
        Query(quantile(share, metric, more=more, over=over), legend)
        for share, legend in ((0.5, "median"), (0.95, "95 %"))
    )


def rates(metric: str, by: str, legend: str = "") -> Query:
    """Return the rate per second, for each value of a label."""
    return Query(f"sum by ({by}) (rate({metric}{{{JOB}}}[{RATE}]))", legend or f"{{{{{by}}}}}")


AT_A_GLANCE = Row(
    "At a glance",
    (
        Panel(
            "TrainJobs",
            tuple(
                Query(
                    f'sum({ONCE} (kftrainer_trainjobs{{{JOB_NS},state="{state}"}})) or vector(0)',
                    state,
                )
                for state in STATES
            ),
            display="stat",
            width=9,
            height=4,
            colors=STATES,
            description="Number of TrainJobs in each state.",
        ),
        Panel(
            "Failed",
            (
                Query(
                    f'(sum(increase({ENDED}{{{JOB},result="Failed"}}[$__range])) or vector(0)) '
                    f"/ (sum(increase({ENDED}{{{JOB}}}[$__range])) > 0)"
                ),
            ),
            display="stat",
            unit="percentunit",
            width=3,
            height=4,
            red_above=0.5,
            description="Share of the TrainJobs that ended within the selected time range.",
        ),
        Panel(
            "Replicas",
            (
                Query(f"sum(up{{{JOB}}})", "up"),
                Query(f"sum(min by (instance) (machinery_readiness_check{{{JOB}}}))", "ready"),
            ),
            display="stat",
            width=3,
            height=4,
            red_below=1,
        ),
        Panel(
            "Leaders",
            (Query(f"sum(leader_election_master_status{{{JOB}}})"),),
            display="stat",
            width=3,
            height=4,
            red_below=1,
            description="1 if a leader is elected; no data if leader election is disabled.",
        ),
        Panel(
            "Certificate",
            (
                Query(
                    f"min(machinery_certificate_expiry_timestamp_seconds{{{JOB}}} - time()) / 86400"
                ),
            ),
            display="stat",
            unit="d",
            width=3,
            height=4,
            red_below=21,
            description="Days until the first certificate expires.",
        ),
        Panel(
            "Version",
            (Query(f"max by (version) (kftrainer_build_info{{{JOB}}})", "{{version}}"),),
            display="stat",
            width=3,
            height=4,
            shows_names=True,
        ),
    ),
)

TRAINING = Row(
    "Training",
    (
        Panel(
            "TrainJobs by state",
            (Query(f"sum by (state) ({ONCE} (kftrainer_trainjobs{{{JOB_NS}}}))", "{{state}}"),),
            style="area",
            colors=STATES,
        ),
        Panel(
            "Unfinished, by runtime",
            (
                Query(
                    f"sum by (runtime) ({ONCE} (kftrainer_trainjobs{{{JOB_NS},{NOT_ENDED}}}))",
                    "{{runtime}}",
                ),
            ),
            style="area",
        ),
        Panel(
            "Unfinished, by namespace",
            (
                Query(
                    "topk(10, sum by (namespace) "
                    f"({ONCE} (kftrainer_trainjobs{{{JOB_NS},{NOT_ENDED}}})))",
                    "{{namespace}}",
                ),
            ),
            style="area",
            description="The ten namespaces with the most TrainJobs.",
        ),
        Panel(
            "Finished, by result",
            (Query(f"sum by (result) (increase({ENDED}{{{JOB}}}[{RATE}]))", "{{result}}"),),
            style="bars",
            colors=STATES,
        ),
        Panel(
            "Failed, by runtime",
            (
                Query(
                    f'sum by (runtime) (increase({ENDED}{{{JOB},result="Failed"}}[{RECENT}]))',
                    "{{runtime}}",
                ),
            ),
            description="Failed TrainJobs within 30 minutes.",
        ),
        Panel(
            "Longest time in a state",
            (
                Query(
                    "time() - min by (state) "
                    f"(kftrainer_trainjob_oldest_timestamp_seconds{{{JOB_NS}}})",
                    "{{state}}",
                ),
            ),
            unit="s",
            colors=STATES,
            description="Longest time that an unfinished TrainJob has been in the state.",
        ),
        Panel(
            "From creation to JobSet",
            quantiles("kftrainer_trainjob_jobset_creation_seconds", over=RECENT),
            unit="s",
            description="TrainJobs of the last 30 minutes: the latency of kftrainer itself.",
        ),
        Panel(
            "From creation to the first pod running",
            quantiles("kftrainer_trainjob_first_pod_running_seconds", over=RECENT),
            unit="s",
            description="TrainJobs of the last 30 minutes; includes queueing and image pulls.",
        ),
        Panel(
            "From creation to Complete",
            (
                *quantiles(DURATION, more=COMPLETE, over=RECENT),
                Query(
                    f"sum by (runtime) (rate({DURATION}_sum{{{JOB},{COMPLETE}}}[{RECENT}])) "
                    f"/ sum by (runtime) (rate({DURATION}_count{{{JOB},{COMPLETE}}}[{RECENT}]))",
                    "mean of {{runtime}}",
                ),
            ),
            unit="s",
            description="TrainJobs of the last 30 minutes.",
        ),
    ),
)

OPERATOR = Row(
    "Operator",
    (
        Panel(
            "Reconciles",
            (rates("controller_runtime_reconcile_total", "controller"),),
            unit="ops",
        ),
        Panel(
            "Failed reconciles",
            tuple(
                Query(f"sum(increase(controller_runtime_{metric}{{{JOB}}}[{RATE}]))", legend)
                for metric, legend in (
                    ("reconcile_errors_total", "errors"),
                    ("reconcile_panics_total", "of these, panics"),
                    ("reconcile_timeouts_total", "of these, timeouts"),
                )
            ),
            style="bars",
            description="Invalid TrainJobs are reported in their status, not counted here.",
        ),
        Panel(
            "Queue depth",
            (Query(f"sum by (controller) (workqueue_depth{{{JOB}}})", "{{controller}}"),),
        ),
        Panel(
            "Duration of reconciles",
            quantiles("controller_runtime_reconcile_time_seconds"),
            unit="s",
        ),
        Panel(
            "Time in the queue",
            quantiles("workqueue_queue_duration_seconds"),
            unit="s",
        ),
        Panel(
            "Event loop lag",
            (
                Query(
                    quantile(0.99, "machinery_event_loop_lag_seconds", "instance"), "{{instance}}"
                ),
            ),
            unit="s",
            description="99th percentile by replica: all work is delayed by it.",
        ),
        Panel(
            "Requests to the API server",
            (rates("rest_client_requests_total", "code"),),
            unit="reqps",
            style="area",
        ),
        Panel(
            "Latency of the API server",
            (Query(quantile(0.95, "rest_client_request_duration_seconds", "verb"), "{{verb}}"),),
            unit="s",
            description="95th percentile by method.",
        ),
        Panel(
            "Objects in the cache",
            (Query(f"max by (kind) (machinery_informer_objects{{{JOB}}})", "{{kind}}"),),
        ),
        Panel(
            "Memory",
            (Query(f"process_resident_memory_bytes{{{JOB}}}", "{{instance}}"),),
            unit="bytes",
        ),
        Panel(
            "CPU",
            (Query(f"rate(process_cpu_seconds_total{{{JOB}}}[{RATE}])", "{{instance}}"),),
            unit="short",
            description="Cores by replica.",
        ),
        Panel(
            "Restarted watches",
            (
                Query(
                    f"sum(increase(machinery_informer_watch_reconnects_total{{{JOB}}}[{RATE}]))",
                    "resumed",
                ),
                Query(
                    f"sum(increase(machinery_informer_relists_total{{{JOB}}}[{RATE}]))",
                    "relisted",
                ),
            ),
            style="bars",
        ),
    ),
)

WEBHOOK = Row(
    "Webhook",
    (
        Panel(
            "Responses",
            (rates("machinery_webhook_verdicts_total", "code"),),
            unit="reqps",
            style="area",
            width=6,
            description="200: allowed; 403: denied; other codes are failures.",
        ),
        Panel(
            "Denials, by rule",
            (
                Query(
                    "topk(10, sum by (rule) (clamp_min("
                    f"{DENIALS} - ({DENIALS} offset {RATE} or {DENIALS} * 0), 0)))",
                    "{{rule}}",
                ),
            ),
            style="bars",
            width=6,
            description="The ten most frequent rules.",
        ),
        Panel(
            "Latency of responses",
            quantiles("controller_runtime_webhook_latency_seconds"),
            unit="s",
            width=6,
        ),
        Panel(
            "Requests in flight",
            (
                Query(
                    f"sum by (webhook) (controller_runtime_webhook_requests_in_flight{{{JOB}}})",
                    "{{webhook}}",
                ),
            ),
            width=6,
        ),
    ),
)


def kftrainer() -> Json:
    """Return the dashboard."""
    return dashboard(
        UID,
        "kftrainer",
        rows=(AT_A_GLANCE, TRAINING, OPERATOR, WEBHOOK),
        variables=VARIABLES,
        description="TrainJobs and the operator.",
    )
