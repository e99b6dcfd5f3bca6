from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kftrainer.kube.objects.quantity import ZERO, Format, Quantity, QuantityError

DECIMAL = dict(zip(("n", "u", "m", "", *"kMGTPE"), range(-9, 21, 3), strict=True))
EXPONENT = {f"{e}{n}": n for e in "eE" for n in (-12, -1, 0, 3, 7, 40)}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
FACTORS = {
    **{suffix: Fraction(10) ** exponent for suffix, exponent in (DECIMAL | EXPONENT).items()},
    **{suffix: Fraction(2) ** exponent for suffix, exponent in BINARY.items()},
}
NANO = Fraction(1, 10**9)
LARGEST = Fraction(2**63 - 1)  # of binary quantities

digits = st.text("0123456789", min_size=1, max_size=25)
numbers = st.one_of(digits, st.builds("{}.{}".format, digits, digits))
signs = st.sampled_from(["", "+", "-"])


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A quantity, and its value."""
    sign, number, suffix = draw(signs), draw(numbers), draw(st.sampled_from([*FACTORS]))
    return f"{sign}{number}{suffix}", Fraction(f"{sign}{number}") * FACTORS[suffix]


quantities = texts().map(lambda pair: Quantity.parse(pair[0]))
sums = st.builds(Quantity.__add__, quantities, quantities)


def value_of(quantity: Quantity) -> Fraction:
    return quantity.nanos * NANO


@given(texts())
@example(("8Ei", Fraction(2**63)))
@example(("-8Ei", Fraction(-(2**63))))
def test_the_value_is_exact_but_for_parts_of_a_nano_which_are_rounded_up(
    pair: tuple[str, Fraction],
) -> None:
    text, value = pair
    size = min(abs(value), LARGEST) if text.endswith("i") else abs(value)
    found = value_of(Quantity.parse(text))
    assert size <= abs(found) < size + NANO
    assert (found < 0) == (value < 0)


@given(st.one_of(quantities, sums))
def test_formatted_quantity_round_trips(quantity: Quantity) -> None:
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)


@given(quantities, quantities)
def test_quantities_are_ordered_by_their_values(one: Quantity, other: Quantity) -> None:
    assert (one < other) == (value_of(one) < value_of(other))
    assert (one == other) == (value_of(one) == value_of(other))
    assert value_of(max(one, other)) == max(value_of(one), value_of(other))


@given(quantities, quantities, st.integers(-(10**6), 10**6))
def test_sums_and_products_are_exact(one: Quantity, other: Quantity, times: int) -> None:
    assert value_of(one + other) == value_of(one) + value_of(other)
    assert value_of(one * times) == value_of(times * one) == value_of(one) * times


@given(quantities)
def test_rounding_is_away_from_zero_by_the_minimum(quantity: Quantity) -> None:
    value = abs(value_of(quantity))
    assert value <= abs(quantity.ceil()) < value + 1
    assert value <= abs(value_of(quantity.in_millis())) < value + Fraction(1, 1000)
    assert (quantity.in_millis().nanos > 0) == (quantity.ceil() > 0) == (quantity.nanos > 0)
    assert quantity.in_millis().nanos % 10**6 == 0


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("0.001", "1m"),
        ("1000", "1k"),
        ("1000000k", "1G"),
        ("1024Mi", "1Gi"),
        ("0.5Gi", "512Mi"),
        ("1000Ki", "1000Ki"),
        ("1.1Ki", "1126400m"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("9216010.7421875Ki", "9437195k"),
        ("100Ei", "9223372036854775807"),
        ("12e6", "12e6"),
        ("1.2e6", "1200e3"),
        ("1000e0", "1e3"),
        ("10e-1", "1"),
        ("1e-10", "1e-9"),
        ("-0.1n", "-1n"),
        ("00", "0"),
        ("-0", "0"),
        ("0Ki", "0"),
        (" 2 ", "2"),
        ("\u00a02", "2"),
        (".", "0"),
        ("Ti", "0"),
        ("+1234567890123456789", "1234567890123456789"),
        ("+123456789013Ki", "123456789013Ki"),
        ("1000E", "1e21"),
    ],
)
def test_the_canonical_form(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize("text", ["+5", "007", "1.500", "1.234k", "1.", "1E3", "1e+3", "01Ki"])
def test_some_texts_are_unchanged_until_arithmetic_as_in_go(text: str) -> None:
    quantity = Quantity.parse(text)
    assert str(quantity) == text
    assert str(quantity + ZERO) == str(quantity * 1) != text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3, "3"),
        (-2000, "-2k"),
        (10**30, "1e30"),
        (0.5, "500m"),
        (1e3, "1k"),
        (1e-6, "1e-6"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert str(Quantity.parse(value)) == text


@pytest.mark.parametrize(
    ("one", "other", "total"),
    [
        ("1Gi", "1G", "2073741824"),
        ("1Gi", "1024", "1048577Ki"),
        ("0", "1Gi", "1Gi"),
        ("1k", "24", "1024"),
        ("0Ki", "2k", "2k"),
        ("1e3", "1k", "2e3"),
        ("0.0001220703125Ki", "1023.875", "1024"),  # too small to stay binary
        ("7Ei", "1Ei", "9223372036854775808"),
        ("999E", "1E", "1e21"),
    ],
)
def test_a_sum_is_written_like_its_first_part_that_is_not_zero(
    one: str, other: str, total: str
) -> None:
    assert str(Quantity.parse(one) + Quantity.parse(other)) == total


def test_quantities_are_compared_by_value() -> None:
    kibi, plain = Quantity.parse("1Ki"), Quantity.parse("1024")
    assert kibi == plain
    assert hash(kibi) == hash(plain)
    assert (kibi.format, plain.format) == (Format.BINARY, Format.DECIMAL)


def test_only_nothing_is_false() -> None:
    assert not ZERO
    assert not Quantity.parse("0Gi")
    assert Quantity.parse("1n")
    assert Quantity.ZERO is ZERO


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "abc", "1 Gi", "1GB", "1gi", "1K", "1mi", "1ki", "1e", "1e+", "1e1.5", "1.2.3"),
        *("--1", "1,5", "1_000", "\u0661", "1\n", "\t1", "0x10", "Pi", ".Ei", "e-10", "inf"),
        *(True, False, None, [], {"cpu": 1}, b"1", float("nan"), float("inf")),
    ],
)
def test_invalid_quantity_is_rejected_in_one_line(value: object) -> None:
    with pytest.raises(QuantityError, match=r"^.+ is not a quantity such as 2, 500m or 1\.5Gi$"):
        Quantity.parse(value)


@pytest.mark.parametrize(
    "value", ["9" * 257, "1e257", "1e-257", "1e991", "1e" + "9" * 200, 10**5000], ids=range(6)
)
def test_parse_time_is_bounded_for_large_numbers(value: object) -> None:
    with pytest.raises(QuantityError, match="has more than 256 digits or decimal places"):
        Quantity.parse(value)


@given(st.one_of(st.text(), st.text("0175.+-eEinumkKMGTP ")))
@example("9" * 240 + "e255")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        written = str(Quantity.parse(text))
    except QuantityError as error:
        written = ""
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
    assert len(message) < 120
    assert message or Quantity.parse(written) == Quantity.parse(text)


def test_quantity_of_any_length_is_written_as_dividing_step_by_step_does() -> None:
    for nanos in (10**n * m for n in range(220) for m in (1, 12, 1024, 999)):
        number, exponent = nanos, -9
        while number % 1000 == 0:
            number //= 1000
            exponent += 3
        written = str(Quantity(nanos, Format.EXPONENT))
        assert written == (f"{number}e{exponent}" if exponent else str(number))
    for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1):
        assert str(Quantity(7 * 1024**power * 10**9, Format.BINARY)) == f"7{suffix}"


def test_error_path_is_prepended_by_callers() -> None:
    with pytest.raises(QuantityError) as raised:
        Quantity.parse("lots")
    error = raised.value
    assert error.path == ""
    inside = error.at("requests[cpu]")
    assert inside.at("containers[0].resources").path == "containers[0].resources.requests[cpu]"
    assert str(inside) == str(error)
