"""`make generate`: writes all generated files; with `--check` it only reports stale ones."""

import asyncio
import json
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import yaml

from generate import configuration, crds, dashboard, merge_keys, versions
from generate.schema import Library
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import manifests
from kftrainer.devcluster.artifacts.versions import JOBSET_MANIFESTS
from kftrainer.devcluster.components.jobset import CRD_FILE
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.progress import Progress

ROOT = Path(__file__).parent.parent.parent
# The chart has copies, because some tools that fetch it, such as Flux, do not follow links.
CRD_FOLDERS = (
    ROOT / "src" / "kftrainer" / "api" / "crds",
    ROOT / "charts" / "kftrainer" / "files" / "crds",
)
MERGE_KEYS = ROOT / "src" / "kftrainer" / "kube" / "objects" / "pod_template_merge_keys.json"
DASHBOARD = ROOT / "charts" / "kftrainer" / "files" / "dashboard.json"
CONFIGURATION = ROOT / "docs" / "configuration.md"
DEFINITIONS = "kubernetes-json-schema/v1.36.0-local/_definitions.json"
HEADER = "# Generated from the types in src/kftrainer/api by `make generate`; edit those.\n"


class _PlainDumper(yaml.SafeDumper):
    """YAML dumper without anchors, which would be renumbered with every new field."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


async def jobset_spec() -> Library:
    """Return the schema of JobSet from its Go module."""
    folder = await manifests.provide(
        JOBSET_MANIFESTS, cache=cache_paths.cache_home(), progress=Progress(sys.stderr)
    )
    [crd] = manifests.read_documents(folder / CRD_FILE)
    [version] = crd["spec"]["versions"]
    return Library(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def generated(library: Library) -> dict[Path, str]:
    """Return every generated file with its content."""
    out: dict[Path, str] = {}
    for crd in crds.all_crds(library):
        text = HEADER + yaml.dump(crd, Dumper=_PlainDumper, width=100, sort_keys=True)
        out |= {folder / f"{crd['metadata']['name']}.yaml": text for folder in CRD_FOLDERS}
    definitions = json.loads((files("kubernetes_validate") / DEFINITIONS).read_bytes())["$defs"]
    out[MERGE_KEYS] = json.dumps(merge_keys.table(definitions), indent=1, sort_keys=True) + "\n"
    out[DASHBOARD] = json.dumps(dashboard.kftrainer(), indent=1, ensure_ascii=False) + "\n"
    out[CONFIGURATION] = configuration.document()
    return out | versions.texts(ROOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write files that have changed; with --check report them."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        library = asyncio.run(jobset_spec())
    except DevClusterError as error:
        print(f"generate: {error}", file=sys.stderr)
        return 1
    wanted = generated(library)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    present = (path for folder in CRD_FOLDERS for path in folder.glob("*"))
    leftover = [path for path in present if path not in wanted]
    if "--check" in arguments:
        for path in stale + leftover:
            print(f"stale: {path.relative_to(ROOT)}")
        return 1 if stale or leftover else 0
    for path in leftover:
        path.unlink()
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
        print(f"wrote: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
