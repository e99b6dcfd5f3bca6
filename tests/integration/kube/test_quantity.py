"""Quantities as the API server reads and writes them, thousands to an object."""

from itertools import product
from random import Random
from typing import Any

import orjson
import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from kftrainer.kube.objects.quantity import Format, Quantity, QuantityError

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PER_DEVICE = 32
BAD_REQUEST = 400

SIGNS = ("", "", "", "-", "+")
SUFFIXES = ("", *"numkMGTPE", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
EXPONENTS = ("e0", "E0", "e3", "E3", "e+6", "E-6", "e-1", "e04", "e17", "e25", "e-12", "e200")
EDGE_CASES = (
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "999999999999999999"),
    *("7Ei", "8Ei", "-8Ei", "9.5Ei", "7.99999Ei", "1023Pi", "8388608Ti", "1023", "1023Ki"),
    *("1e3", "1E3", "12e6", "1.500", "+1", "007", "1.", ".5", "0.5Gi", "1.5Gi", "0.0001Ki"),
    *("1.1Ki", "-1.1Ki", "0.1n", "-0.1n", "1.0000000001", "1e-10", "0e-10", "1024Mi", "999E"),
    *(
        " 1",
        "1 ",
        "  1.5Gi  ",
        "\u00a01\u3000",
        "1500E",
        "9216010.7421875Ki",
        "0.000000000",
        "00000000001",
    ),
)
# All that a quantity is made of, and what stands next to that.
ALPHABET = "0175.+-eEinumkKMGTPgb ,_\u00a0\u0661\t"
JSON_NUMBERS = ("0", "-0", "1", "0.5", "1e3", "1E3", "1e+3", "1.500", "2.50e-1", "1e-12", "1e30")
NUMBERS = (0, 1, -7, 1000, 2**63 - 1, 0.5, 1e3, 1.234e-6, 1e-6, 1e16, 1e22, 2.5e-10, -0.25, 0.1)


def generated(rng: Random, count: int) -> list[str]:
    def digits(most: int) -> str:
        generated_values = "".join(rng.choice("0123456789") for _ in range(rng.randrange(most)))
        return generated_values + rng.choice(("", "", "0", "000", "000000"))

    def one() -> str:
        whole, places = digits(rng.choice((3, 6, 22))), digits(rng.choice((4, 14)))
        number = rng.choice((whole or "0", whole or "0", f"{whole}.{places or '5'}"))
        suffixes = rng.choice((SUFFIXES, EXPONENTS))
        return f"{rng.choice(SIGNS)}{number}{rng.choice(suffixes)}"

    return [one() for _ in range(count)]


def is_accepted(value: object) -> bool:
    try:
        Quantity.parse(value)
    except QuantityError:
        return False
    return True


def past_the_suffixes(text: str) -> bool:
    """Whether the server forgets what the digits count: it makes 1 of 1000E."""
    quantity = Quantity.parse(text)
    return "e" in str(quantity) and quantity.format is Format.DECIMAL


def resource_slice(name: str, values: list[Any]) -> dict[str, Any]:
    """An object with any number of quantities and no other required fields."""
    capacity = [(f"c{n:04}", {"value": value}) for n, value in enumerate(values)]
    devices = [
        {"name": f"from-{n}", "capacity": dict(capacity[n : n + PER_DEVICE])}
        for n in range(0, len(values), PER_DEVICE)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "quantities.example.com",
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "allNodes": True,
            "devices": devices,
        },
    }


async def stored(api: ApiClient, name: str, values: list[Any]) -> list[str]:
    """The quantities as they come back from etcd."""
    await api.create(resource_slice(name, values))
    found = await api.get(f"{SLICES}/{name}")
    await api.delete(f"{SLICES}/{name}")
    return [
        device["capacity"][key]["value"]
        for device in found["spec"]["devices"]
        for key in sorted(device["capacity"])
    ]


async def refused(api: ApiClient, value: object) -> bool:
    body = resource_slice("refused", [value])
    try:
        await api.request("POST", SLICES, query={"dryRun": "All"}, body=body)
    except ApiError as error:
        return error.status == BAD_REQUEST
    return False


def differences(values: list[Any], answers: list[str]) -> list[tuple[Any, str, str]]:
    ours = [str(Quantity.parse(value)) for value in values]
    return [
        (value, our, answer)
        for value, our, answer in zip(values, ours, answers, strict=True)
        if our != answer
    ]


async def test_formatted_quantities_match_the_server_for_random_values(
    api: ApiClient, namespace: str
) -> None:
    generated_values = generated(Random(20), 4000 - len(EDGE_CASES))  # noqa: S311
    texts = [text for text in (*EDGE_CASES, *generated_values) if not past_the_suffixes(text)]
    assert len(texts) > 3500
    assert differences(texts, await stored(api, namespace, texts)) == []


async def test_computed_quantities_are_stored_unchanged(api: ApiClient, namespace: str) -> None:
    generated_values = [Quantity.parse(text) for text in generated(Random(21), 4000)]  # noqa: S311
    texts = [
        str(one + other)
        for one, other in zip(generated_values[::2], generated_values[1::2], strict=True)
    ]
    assert await stored(api, namespace, texts) == texts


async def test_shortest_texts_are_accepted_and_rejected_alike(
    api: ApiClient, namespace: str
) -> None:
    texts = ["", *ALPHABET, *("".join(pair) for pair in product(ALPHABET, repeat=2))]
    rng = Random(22)  # noqa: S311
    texts += ["".join(rng.choices(ALPHABET, k=rng.choice((3, 4, 5)))) for _ in range(1000)]
    accepted = [text for text in texts if is_accepted(text)]
    others = [text for text in texts if not is_accepted(text)]
    assert len(accepted) > 200
    assert len(others) > 200
    assert differences(accepted, await stored(api, namespace, accepted)) == []
    assert [text for text in others if not await refused(api, text)] == []


@pytest.mark.parametrize("value", [True, False, [], ["1"], {}, {"value": "1"}, float("nan")])
async def test_value_that_is_neither_text_nor_number_is_rejected(
    api: ApiClient, value: object
) -> None:
    assert not is_accepted(value)
    if value == value:  # noqa: PLR0124  NaN is sent as null, which the server takes for none
        assert await refused(api, value)


async def test_numbers_are_read_as_their_json(api: ApiClient, namespace: str) -> None:
    assert differences(list(NUMBERS), await stored(api, namespace, list(NUMBERS))) == []
    fragments = [orjson.Fragment(text) for text in JSON_NUMBERS]
    answers = await stored(api, namespace, fragments)
    assert answers == [str(Quantity.parse(text)) for text in JSON_NUMBERS]
    loaded = [Quantity.parse(orjson.loads(text)) for text in JSON_NUMBERS]
    assert loaded == [Quantity.parse(answer) for answer in answers]


async def test_resource_lists_are_rounded_up_to_thousandths(api: ApiClient, namespace: str) -> None:
    generated_values = (text for text in generated(Random(23), 1500) if not text.startswith("-"))  # noqa: S311
    texts = [text for text in generated_values if not past_the_suffixes(text)]
    assert len(texts) > 1000
    found = await api.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "rounded", "namespace": namespace},
            "spec": {"hard": {f"requests.example.com/{n}": text for n, text in enumerate(texts)}},
        }
    )
    hard = found["spec"]["hard"]
    ours = [str(Quantity.parse(text).in_millis()) for text in texts]
    assert ours == [hard[f"requests.example.com/{n}"] for n in range(len(texts))]


async def test_quantity_beyond_the_suffixes_is_exact_unlike_on_the_server(
    api: ApiClient, namespace: str
) -> None:
    assert await stored(api, namespace, ["1000E", "1e21"]) == ["1", "1e21"]
    assert str(Quantity.parse("1000E")) == "1e21"
