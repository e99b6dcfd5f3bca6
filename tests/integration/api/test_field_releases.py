"""docs/compatibility.md lists every field of the published releases, and its releases."""

from tests.support import upstream_manifests
from tests.support.field_tables import RELEASES, Row, fields, rows


def listed() -> dict[tuple[str, str], Row]:
    """The rows of the tables by kind and path."""
    return {(kind, path): row for row in rows() for kind in row.kinds for path in row.paths}


async def published() -> dict[tuple[str, str], set[str]]:
    """The releases that have each field, by kind and path."""
    found: dict[tuple[str, str], set[str]] = {}
    for release in RELEASES:
        for kind, crd in (await upstream_manifests.crds(f"v{release}.0")).items():
            for path in fields(crd):
                found.setdefault((kind, path), set()).add(release)
    return found


async def test_every_field_of_every_release_has_a_row() -> None:
    found = await published()
    assert len(found) > 300
    assert [each for each in found if each not in listed()] == []


async def test_the_releases_of_each_field_are_right() -> None:
    """A table about several objects lists the releases in which any of them has the field."""
    found = await published()
    assert [
        (row.paths, row.releases)
        for row in rows()
        if {release for path in row.paths for release in found.get((row.kinds[0], path), ())}
        != {*row.published_in()}
    ] == []
