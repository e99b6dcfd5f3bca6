"""Runs a tool of this folder: `python hack/run.py demo`.

Ctrl-C ends a tool with one line and exit code 130, also while its modules are being imported.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from kftrainer.cli.interrupts import exiting_on_interrupt, report_interrupt


def main(name: str) -> int:
    """Run the module, or the package's `__main__`, with the arguments that follow its name."""
    try:
        with exiting_on_interrupt(name):
            tool = import_module(_module(name))
        code: int = tool.main()
    except KeyboardInterrupt:
        return report_interrupt(name)
    return code


def _module(name: str) -> str:
    spec = find_spec(name)
    is_package = spec is not None and spec.origin and Path(spec.origin).name == "__init__.py"
    return f"{name}.__main__" if is_package else name


if __name__ == "__main__":
    del sys.argv[0]
    sys.exit(main(sys.argv[0]))
