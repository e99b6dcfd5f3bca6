"""The folder of `kftrainer manager --runtimes`: one ClusterTrainingRuntime per file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES
from kftrainer.api.schema.creation import creation_errors
from kftrainer.cli.manifests.documents import SUFFIXES, Document, read
from kftrainer.kube.objects.resource import Manifest

SUFFIX = ".yaml"
NONE = "none"  # a file of this name declares that the folder is empty on purpose
# Other metadata belongs to the API server or to the controllers of the object.
METADATA = ("name", "labels", "annotations")


class RuntimeFolderError(Exception):
    """The folder cannot be used; the message contains the files and their problems."""


def runtimes_in(folder: Path) -> Sequence[Manifest]:
    """Return the runtimes in the order of their file names.

    An empty folder is an error, for example a volume that is not mounted, unless it contains a file
    named `none`. Hidden entries are ignored: a mounted ConfigMap has its files twice, once in a
    hidden folder and once as links into it.
    """
    found: dict[str, Document] = {}
    problems: list[str] = []
    files, is_empty = _files(folder)
    if not files and not is_empty:
        raise RuntimeFolderError(
            f"runtimes cannot be used: {folder} contains no {SUFFIX} file; to delete all runtimes "
            f"that were applied from it earlier, add an empty file named {NONE}"
        )
    if files and is_empty:
        problems.append(
            f"{folder / NONE}: this file declares an empty folder, but {files[0].name} exists"
        )
    for file in files:
        document, wrong = _read(file)
        problems += wrong
        if document is None:
            continue
        name = document.content["metadata"]["name"]
        if name in found:
            problems.append(f"{file}: duplicate runtime {name}: also in {found[name].place.file}")
        found.setdefault(name, document)
    if problems:
        raise RuntimeFolderError(f"runtimes cannot be used: {'; '.join(problems)}")
    return [document.content for document in found.values()]


def _files(folder: Path) -> tuple[list[Path], bool]:
    """Return the files of runtimes, and whether the file `none` exists."""
    try:
        entries = [
            entry
            for entry in sorted(folder.iterdir())
            if not entry.name.startswith(".") and not entry.is_dir()
        ]
    except OSError as error:
        reason = error.strerror or error
        raise RuntimeFolderError(f"failed to read runtimes: {folder}: {reason}") from None
    files = [entry for entry in entries if entry.suffix in SUFFIXES]
    return files, any(entry.name == NONE for entry in entries)


def _read(file: Path) -> tuple[Document | None, list[str]]:
    """Return the runtime in the file, or its problems."""
    if file.suffix != SUFFIX:
        return None, [f"{file}: the file name must end in {SUFFIX}"]
    result = read([str(file)])
    if result.errors:
        return None, [str(error) for error in result.errors]
    if len(result.documents) != 1:
        return None, [f"{file}: must contain one object, but contains {len(result.documents)}"]
    [document] = result.documents
    problems = [f"{document.place}: {problem}" for problem in _problems(document.content)]
    return (None, problems) if problems else (document, [])


def _problems(content: Manifest) -> Iterator[str]:
    kind = CLUSTER_TRAINING_RUNTIMES
    found = (content.get("apiVersion"), content.get("kind"))
    if found != (kind.api_version, kind.kind):
        yield f"must be a {kind.kind} of {kind.api_version}, not {_described(*found)}"
        return
    metadata = content.get("metadata")
    if isinstance(metadata, Mapping):
        for field in metadata:
            if field not in METADATA:
                yield f"metadata.{field}: must not be set here"
    if "status" in content:
        yield "status: must not be set here"
    yield from map(str, creation_errors(content))


def _described(api_version: object, kind: object) -> str:
    if not isinstance(kind, str):
        return "an object without a kind"
    return f"a {kind} of {api_version}" if isinstance(api_version, str) else f"a {kind}"
