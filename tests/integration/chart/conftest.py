"""The chart with each set of values."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.chart.value_sets import CELLS
from tests.support.helm import WITHOUT_CRDS, Object, Values, merged, render

Rendering = Callable[..., list[Object]]


@pytest.fixture(params=CELLS)
def cell(request: pytest.FixtureRequest) -> str:
    """The name of a set of values, one after the other."""
    name: str = request.param
    return name


@pytest.fixture
def objects(cell: str, helm_program: Path) -> list[Object]:
    """What is rendered with each set of values."""
    return render(helm_program, CELLS[cell])


@pytest.fixture
def rendered(helm_program: Path) -> Rendering:
    """Renders values without CRDs, unless they enable them."""

    def rendering(*values: Values) -> list[Object]:
        return render(helm_program, merged(WITHOUT_CRDS, *values))

    return rendering
