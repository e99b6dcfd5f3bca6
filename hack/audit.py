"""`make audit`: looks up known vulnerabilities of the locked dependencies with pip-audit.

Exit code 0: no dependency has a known vulnerability. 1: at least one has. 2: there is no data for
some dependencies; pip-audit itself reports success when an index has no vulnerability data.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from image.lock import packages_in

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-build.lock")
SUCCESS, VULNERABLE, UNKNOWN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of pip-audit for the packages of a lock file."""

    vulnerable: Sequence[str]
    not_audited: Sequence[str]

    @property
    def exit_code(self) -> int:
        """The exit code for these results."""
        if self.vulnerable:
            return VULNERABLE
        return UNKNOWN if self.not_audited else SUCCESS


def findings(report: Mapping[str, Any], packages: Iterable[str]) -> Findings:
    """Return the findings in a report of pip-audit about these packages."""
    by_name = {each["name"]: each for each in report["dependencies"] if "version" in each}
    vulnerable = [
        f"{each['name']} {each['version']}: {found['id']}"
        f" (fixed in {', '.join(found['fix_versions']) or 'no release'})"
        for each in by_name.values()
        for found in each["vulns"]
    ]
    return Findings(vulnerable, [name for name in packages if name not in by_name])


def audit(program: str, lock: Path, more: Sequence[str]) -> Findings:
    """Run pip-audit on the lock file; raises OSError or ValueError if there is no report."""
    command = [program, "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off", *more],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ValueError(f"pip-audit failed: {last}")
    return findings(json.loads(done.stdout), [each.name for each in packages_in(lock)])


def main(argv: list[str] | None = None) -> int:
    """Audit the dependencies of the image and of its build."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__)
    parser.add_argument("--program", default="pip-audit", metavar="FILE")
    parser.add_argument("more", nargs="*", help="flags for pip-audit, after --")
    given = parser.parse_args(argv)
    worst = SUCCESS
    for name in LOCKS:
        try:
            found = audit(given.program, ROOT / name, given.more)
        except (OSError, ValueError) as error:
            print(f"audit: {name}: {error}", file=sys.stderr)
            return UNKNOWN
        for each in found.vulnerable:
            print(f"{name}: {each}")
        if found.not_audited:
            print(
                f"audit: {name}: no vulnerability data for {len(found.not_audited)} packages "
                f"({', '.join(found.not_audited[:5])} ...): pypi.org or, with FLAGS='-s osv', "
                "api.osv.dev must be reachable; a mirror may not serve this data",
                file=sys.stderr,
            )
        worst = worst if worst == VULNERABLE else found.exit_code or worst
    return worst


if __name__ == "__main__":
    sys.exit(main())
