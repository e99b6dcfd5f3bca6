"""The public API of `kftrainer.machinery` and of `kftrainer.plugin`."""

import subprocess
import sys
from types import ModuleType

import pytest

from kftrainer import machinery, plugin


@pytest.mark.parametrize("facade", [machinery, plugin], ids=lambda each: each.__name__)
def test_public_names_can_be_imported(facade: ModuleType) -> None:
    missing = [name for name in facade.__all__ if not hasattr(facade, name)]
    assert missing == []


def test_machinery_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        machinery.Nothing  # noqa: B018


def test_importing_machinery_imports_no_submodule() -> None:
    code = (
        "import sys, kftrainer.machinery\n"
        "print(sum(each.startswith('kftrainer.machinery.') for each in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
