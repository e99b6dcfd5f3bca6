"""The public API of `kftrainer.machinery` and of `kftrainer.plugin`."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kftrainer import machinery, plugin

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("facade", [machinery, plugin], ids=lambda each: each.__name__)
def test_public_names_can_be_imported(facade: ModuleType) -> None:
    missing = [name for name in facade.__all__ if not hasattr(facade, name)]
    assert missing == []


@pytest.mark.parametrize(
    ("facade", "document"), [(machinery, "machinery.md"), (plugin, "plugins.md")]
)
def test_documentation_lists_all_public_names(facade: ModuleType, document: str) -> None:
    text = (DOCS / document).read_text()
    section = text.partition("\n## Public API\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(facade.__all__)


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
