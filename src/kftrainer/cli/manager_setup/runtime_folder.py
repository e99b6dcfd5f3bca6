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
    files, says_none = _files(folder)
    if not files and not says_none:
        raise RuntimeFolderError(
            f"runtimes cannot be used: no {SUFFIX} file is in {folder}: to have no runtimes, and "
            f"those deleted that were in it before, put a file named {NONE} there"
        )
    if files and says_none:
        problems.append(f"{folder / NONE}: it says that there are none, but {files[0].name} is one")
    for file in files:
        document, wrong = _read(file)
        problems += wrong
        if document is None:
            continue
        name = document.content["metadata"]["name"]
        if name in found:
            problems.append(f"{file}: {name} is in {found[name].place.file} already")
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
        return None, [f"{file}: its name must end in {SUFFIX}"]
    reading = read([str(file)])
    if reading.problems:
        return None, reading.problems
    if len(reading.documents) != 1:
        return None, [f"{file}: it must hold one object, and holds {len(reading.documents)}"]
    [document] = reading.documents
    problems = [f"{document.place}: {problem}" for problem in _problems(document.content)]
    return (None, problems) if problems else (document, [])


def _problems(content: Manifest) -> Iterator[str]:
    kind = CLUSTER_TRAINING_RUNTIMES
    said = (content.get("apiVersion"), content.get("kind"))
    if said != (kind.api_version, kind.kind):
        yield f"it must be a {kind.kind} of {kind.api_version}, and not {_named(*said)}"
        return
    metadata = content.get("metadata")
    if isinstance(metadata, Mapping):
        for field in metadata:
            if field not in METADATA:
                yield f"metadata.{field}: may not be said here"
    if "status" in content:
        yield "status: may not be said here"
    yield from map(str, creation_errors(content))


def _named(api_version: object, kind: object) -> str:
    if not isinstance(kind, str):
        return "something without a kind"
    return f"a {kind} of {api_version}" if isinstance(api_version, str) else f"a {kind}"
