from pathlib import Path

import pytest
import yaml

from kftrainer import config
from kftrainer.api.configuration import DEFAULT, Configuration
from kftrainer.config import ConfigurationError

HEAD = "apiVersion: config.trainer.kubeflow.org/v1alpha1\nkind: Configuration\n"
# The file of the chart of Kubeflow Trainer 2.1, with all optional fields.
SHIPPED = (
    HEAD
    + """
webhook:
  port: 9443
  host: ""
metrics:
  bindAddress: ":8443"
  secureServing: true
health:
  healthProbeBindAddress: ":8081"
  readinessEndpointName: readyz
  livenessEndpointName: healthz
leaderElection:
  leaderElect: true
  leaseDuration: 15s
  renewDeadline: 10s
  retryPeriod: 2s
  resourceName: trainer.kubeflow.org
  resourceNamespace: ""
controller:
  groupKindConcurrency:
    TrainJob.trainer.kubeflow.org: 5
    TrainingRuntime.trainer.kubeflow.org: 1
    ClusterTrainingRuntime.trainer.kubeflow.org: 1
certManagement:
  enable: true
  webhookServiceName: kubeflow-trainer-controller-manager
  webhookSecretName: kubeflow-trainer-webhook-cert
clientConnection:
  qps: 50.0
  burst: 100
"""
)


def test_the_file_of_release_2_1_is_read() -> None:
    read = config.parse(SHIPPED, "file")
    assert read.leader_election.leader_elect is True
    election = read.leader_election
    assert (election.lease_duration.seconds, election.retry_period.seconds) == (15.0, 2.0)
    assert read.controller.concurrency("TrainJob") == 5
    assert read.client_connection.qps == 50.0


def test_unset_fields_have_defaults() -> None:
    assert config.parse(HEAD, "file") == DEFAULT
    assert DEFAULT.webhook.port == 9443
    assert DEFAULT.health.readiness_endpoint_name == "readyz"
    assert DEFAULT.controller.concurrency("TrainJob") == 5
    assert DEFAULT.client_connection.qps == 0


def test_a_block_without_durations_has_those_that_work() -> None:
    election = config.parse(HEAD + "leaderElection: {leaderElect: true}\n", "file").leader_election
    durations = (election.lease_duration, election.renew_deadline, election.retry_period)
    assert durations == ("15s", "10s", "2s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("webhok: {}", "webhok: is not a known field"),
        ("webhook: {port: -1}", "webhook.port: must be between 1 and 65535, or 0"),
        ("webhook: {port: 65536}", "webhook.port: must be between 1 and 65535, or 0"),
        ("webhook: {port: http}", "webhook.port: must be an integer"),
        ("webhook: {clientNames: [a]}", "webhook: clientNames has no effect without"),
        ("metrics: {bindAddress: 8443}", "metrics.bindAddress: must be a string"),
        ("metrics: {bindAddress: localhost}", "metrics.bindAddress: must be host:port"),
        ("metrics: {secureServing: 'no'}", "metrics.secureServing: must be true or false"),
        ("health: {readinessEndpointName: a/b}", "health.readinessEndpointName: must match"),
        ("leaderElection: {leaseDuration: 15}", "leaderElection.leaseDuration: must be a duration"),
        (
            "leaderElection: {leaderElect: true, leaseDuration: 10s}",
            "leaderElection: leaseDuration must be longer than renewDeadline",
        ),
        (
            "leaderElection: {leaderElect: true, retryPeriod: 0s}",
            "leaderElection: leaseDuration must be longer than renewDeadline",
        ),
        ("leaderElection: {resourceLock: configmaps}", "leaderElection.resourceLock: must be one"),
        (
            "controller: {groupKindConcurrency: {TrainJob.trainer.kubeflow.org: 0}}",
            "controller.groupKindConcurrency[TrainJob.trainer.kubeflow.org]: must be at least 1",
        ),
        (
            "controller: {groupKindConcurrency: {TrainJob: 3}}",
            "controller.groupKindConcurrency.TrainJob: is not a kind with a controller: must be",
        ),
        ("clientConnection: {qps: -1.0}", "clientConnection.qps: must be at least 0"),
        ("clientConnection: {burst: -1}", "clientConnection.burst: must be at least 0"),
        ("clientConnection: {qps: 5, burst: 0}", "clientConnection: burst must be at least 1"),
        ("plugins: {enable: [a]}", "plugins.enable: is not a known field"),
        ("plugins: [a]", "plugins: must be an object"),
        ("plugins: {enabled: a}", "plugins.enabled: must be a list"),
        ("plugins: {enabled: [1]}", "plugins.enabled[0]: must be a string"),
        ("plugins: {enabled: [a, '']}", "plugins.enabled[1]: must have at least 1 character"),
        ("plugins: {disabled: [a, ~]}", "plugins.disabled[1]: must be a string"),
        (
            "plugins: {enabled: [b, a, c, b, a]}",
            "plugins.enabled: duplicate names: a, b",
        ),
        ("plugins: {disabled: [a, a]}", "plugins.disabled: duplicate names: a"),
    ],
)
def test_invalid_setting_is_reported_with_its_path(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        config.parse(HEAD + text, "manager.yaml")
    assert str(raised.value).startswith(f"invalid configuration: manager.yaml: {message}")


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(ConfigurationError, match=r"webhook\.port.*; .*clientConnection\.burst"):
        config.parse(HEAD + "webhook: {port: -1}\nclientConnection: {burst: -1}\n", "f")


def test_plugins_are_named_in_their_order() -> None:
    plugins = config.parse(HEAD + "plugins: {enabled: [b, a], disabled: [Torch]}\n", "f").plugins
    assert (plugins.enabled, plugins.disabled) == (["b", "a"], ["Torch"])


def test_plugin_replaces_the_built_in_one_of_the_same_name() -> None:
    plugins = config.parse(HEAD + "plugins: {enabled: [Torch], disabled: [Torch]}\n", "f").plugins
    assert (plugins.enabled, plugins.disabled) == (["Torch"], ["Torch"])


def test_no_plugin_is_enabled_or_disabled_by_default() -> None:
    assert (DEFAULT.plugins.enabled, DEFAULT.plugins.disabled) == ([], [])


def test_durations_of_an_election_that_is_off_do_not_matter() -> None:
    election = config.parse(HEAD + "leaderElection: {leaseDuration: 0s}\n", "f").leader_election
    assert election.leader_elect is False


@pytest.mark.parametrize("text", ["webhook:\n", "webhook: {host: }\n", "leaderElection: ~\n"])
def test_key_without_value_has_its_default(text: str) -> None:
    assert config.parse(HEAD + text, "f").webhook == DEFAULT.webhook


def test_an_empty_address_means_the_default() -> None:
    read = config.parse(HEAD + "metrics: {bindAddress: ''}\n", "f")
    assert read.metrics.address == ":8443"
    assert DEFAULT.health.address == ":8081"


def test_configuration_round_trips() -> None:
    document = yaml.safe_load(SHIPPED)
    assert Configuration.parse(document).dump() == document


def test_whole_numbers_will_do_for_qps() -> None:
    assert config.parse(HEAD + "clientConnection: {qps: 50}\n", "f").client_connection.qps == 50


# Each line doubles the keys that PyYAML would copy.
NESTED_MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 65)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("webhook: {port: 1}\nwebhook: {port: 2}\n", "duplicate key 'webhook'"),
        ("webhook: {port: 1, port: 2}\n", "duplicate key 'port'"),
        ("a: [", "failed to decode config file: f"),
        ("? [a]\n: b\n", "a key must be a string"),
        ("1: b\n", "[1]: is not a known field"),
        ("clientConnection: {qps: .inf}\n", "f:3: contains 'inf', which JSON cannot represent"),
        ("---\na: 1\n", "f: must contain one document"),
        (NESTED_MERGES, "expand to more than 400000 values"),
    ],
)
def test_invalid_yaml_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        config.parse(HEAD + text, "f")
    assert message in str(raised.value)


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be an object"):
        config.parse("", "f")


def test_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8 text"):
        config.read(tmp_path / "file")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"failed to read .*: No such file"):
        config.read(tmp_path / "nonesuch")
