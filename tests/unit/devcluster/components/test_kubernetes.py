"""The API server's flags, and what other processes receive about it."""

import json
from dataclasses import replace
from pathlib import Path

from kftrainer.devcluster.cluster_options import FULL, Shape
from kftrainer.devcluster.components import commands, kubernetes


def test_requests_are_audited_on_completion_without_bodies() -> None:
    assert kubernetes.AUDIT_POLICY["omitStages"] == ["RequestReceived"]
    assert kubernetes.AUDIT_POLICY["rules"] == [{"level": "Metadata"}]
    flags = commands.audited(policy=Path("/p"), log=Path("/l"))
    assert flags[:2] == ["--audit-policy-file=/p", "--audit-log-path=/l"]


def test_only_calls_to_services_use_the_socket() -> None:
    """JobSet's webhooks are called by URL, and etcd is not in the cluster."""
    [selection] = kubernetes.egress(Path("/s"))["egressSelections"]
    assert selection["name"] == "cluster"
    assert selection["connection"]["transport"] == {"uds": {"udsName": "/s"}}


def test_shape_round_trips_in_another_process() -> None:
    shape = replace(
        FULL, audit=True, service_proxy=True, admission_config=Path("/etc/admission.yaml")
    )
    assert Shape.from_json(shape.to_json()) == shape


def test_shape_with_process_nodes_round_trips_in_another_process() -> None:
    shape = Shape(
        process_nodes=2,
        process_node_resources={"nvidia.com/gpu": "8"},
        images={"trainer": Path("/env")},
        only_mapped_images=True,
    )
    assert Shape.from_json(json.loads(json.dumps(shape.to_json()))) == shape
