"""Offline validation reports the same errors as the API server."""

import re
from collections import Counter
from dataclasses import dataclass

import orjson

from kftrainer.api.schema.creation import creation_errors
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.field_errors import ErrorType, FieldError
from tests.support.objects import COLLECTIONS, Object
from tests.support.random_objects import corpus, mutants

CREATED, BAD_REQUEST, INVALID = 201, 400, 422
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
SEED, MUTANTS = 20_261, 800
# The server reports the path of an error in three ways: as a field, or in its message.
OUT_OF_RANGE = re.compile(r"Checked value must be of type .* in (\S+)$")
COARSE = r"^(metadata\.(?:labels|annotations|finalizers|ownerReferences)).*"
UNKNOWN = re.compile(r'unknown field "([^"]*)"')


@dataclass(frozen=True, slots=True)
class Answer:
    """The API server's answer: the status, and the fields that it names."""

    status: int
    message: str
    fields: frozenset[str]


async def answer_of(transport: HttpTransport, document: Object, namespace: str) -> Answer:
    path = COLLECTIONS[document["kind"]].format(namespace)
    body = orjson.dumps(document)
    response = await transport.request("POST", path, query=STRICT, body=body)
    parsed = orjson.loads(response.body)
    message = parsed.get("message", "") if response.status != CREATED else ""
    fields = set(UNKNOWN.findall(message)) if response.status == BAD_REQUEST else set()
    for cause in (parsed.get("details") or {}).get("causes") or ():
        found = OUT_OF_RANGE.search(cause["message"])
        fields.add(found[1] if found else cause.get("field", ""))
    return Answer(response.status, message, frozenset(fields - {"<nil>", ""}))


def disagreement(answer: Answer, document: Object) -> str | None:
    """How our judgement differs from the server's, if it does."""
    errors = creation_errors(document)
    if bool(errors) != (answer.status != CREATED):
        return f"{answer.status} {answer.message!r}, but we say {[*map(str, errors)]}"
    if answer.status not in (CREATED, BAD_REQUEST, INVALID):
        return f"{answer.status} {answer.message!r}"
    from_server, from_files = (
        comparable(answer.fields),
        comparable({e.path for e in expected_errors(answer, errors)}),
    )
    if from_server != from_files and not (answer.status == BAD_REQUEST and not from_server):
        only_server, only_files = from_server - from_files, from_files - from_server
        return f"{answer.message!r}: only the server: {only_server}, only validate: {only_files}"
    return None


def expected_errors(answer: Answer, errors: list[FieldError]) -> list[FieldError]:
    """The errors that the server would report at this stage: unknown fields come first."""
    is_first = answer.status == BAD_REQUEST
    return [error for error in errors if (error.type is ErrorType.UNKNOWN) == is_first]


def comparable(fields: frozenset[str] | set[str]) -> set[str]:
    """The paths in one spelling: the server is less exact about metadata, and about maps."""
    found = {re.sub(r"\[([^\]]*[^\]\d][^\]]*)\]", r".\1", field) for field in fields}
    found = {re.sub(COARSE, r"\1", field, flags=re.DOTALL) for field in found}
    # A name generated from an invalid generateName is invalid as well.
    return {"metadata.generateName" if each == "metadata.name" else each for each in found}


async def test_validation_agrees_with_the_api_server(
    control_plane: ControlPlane, namespace: str
) -> None:
    differences, answers = [], Counter[int]()
    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="kftrainer-tests/1") as transport:
        for done, document in (*(("nothing", each) for each in corpus()), *mutants(SEED, MUTANTS)):
            answer = await answer_of(transport, document, namespace)
            answers[answer.status] += 1
            if difference := disagreement(answer, document):
                differences.append(f"{done}: {difference}")
    assert not differences, "\n".join(differences[:10])
    # It was worth asking.
    assert min(answers[CREATED], answers[BAD_REQUEST], answers[INVALID]) > MUTANTS // 10, answers
