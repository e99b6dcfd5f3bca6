import pytest

from kftrainer.devcluster.nodes.kubelet.pods.restarts import Backoff, go_duration, is_restarted
from kftrainer.devcluster.nodes.kubelet.pods.states import Role
from tests.support.node_pods import container, pod


@pytest.mark.parametrize(
    ("policy", "role", "code", "expected"),
    [
        ("Always", Role.MAIN, 0, True),
        ("OnFailure", Role.MAIN, 0, False),
        ("OnFailure", Role.MAIN, 1, True),
        ("Never", Role.MAIN, 1, False),
        ("Always", Role.INIT, 0, False),
        ("Always", Role.INIT, 1, True),
        ("Never", Role.INIT, 1, False),
        ("Never", Role.SIDECAR, 0, True),
    ],
)
def test_restart_follows_the_policy_of_the_pod(
    policy: str, role: Role, code: int, expected: bool
) -> None:
    assert is_restarted(pod(restartPolicy=policy), container(), role, code) is expected


def test_restart_rule_of_a_container_precedes_the_policy() -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    own = container(restartPolicy="Never", restartPolicyRules=[rule])
    codes = [is_restarted(pod(restartPolicy="Always"), own, Role.MAIN, code) for code in (42, 1)]
    assert codes == [True, False]


def test_delay_is_doubled_up_to_five_minutes() -> None:
    backoff, delays = Backoff(), []
    for _ in range(8):
        backoff = backoff.after_run(1)
        delays.append(backoff.delay)
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300]


def test_long_run_resets_the_delay() -> None:
    backoff = Backoff(failures=7).after_run(600)
    assert (backoff.delay, backoff.after_run(1).delay) == (0, 10)


def test_durations_are_printed_as_in_go() -> None:
    assert [go_duration(each) for each in (10, 160, 300, 1.5)] == ["10s", "2m40s", "5m0s", "1.5s"]
