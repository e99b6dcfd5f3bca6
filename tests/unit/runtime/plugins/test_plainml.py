from tests.support.objects import replicated_job, runtime
from tests.support.plans import container_of, job_on, jobs_of, plan

PLAIN = runtime(
    jobs=[replicated_job(env=[{"name": "A", "value": "runtime"}, {"name": "B", "value": "b"}])],
    mlPolicy={"numNodes": 2},
)


def test_num_nodes_of_the_job_is_used() -> None:
    jobset = plan(job_on(PLAIN, trainer={"numNodes": 5}), PLAIN)["JobSet"]
    assert jobs_of(jobset)["node"]["template"]["spec"]["parallelism"] == 5


def test_nodes_count_without_a_policy_too() -> None:
    document = runtime()
    del document["spec"]["mlPolicy"]
    jobset = plan(job_on(document, trainer={"numNodes": 5}), document)["JobSet"]
    assert jobs_of(jobset)["node"]["template"]["spec"]["parallelism"] == 5


def test_variables_of_the_job_replace_those_of_the_runtime_in_their_places() -> None:
    env = [{"name": "C", "value": "c"}, {"name": "A", "value": "job"}]
    assert container_of(plan(job_on(PLAIN, trainer={"env": env}), PLAIN)["JobSet"])["env"] == [
        {"name": "A", "value": "job"},
        {"name": "B", "value": "b"},
        {"name": "C", "value": "c"},
    ]
