"""The plan of a container's root file system: the mounts that the shim executes in order.

There is no overlay: the root is a tmpfs, the top-level folders of the host are bound read-only,
and folders that would show private files are empty and writable. A mount point that does not exist
on the host cannot be created in a read-only folder. Such a folder is therefore replaced by a new
folder, into which its entries are bound one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, Protocol

from kftrainer.devcluster.nodes.sandbox.protocol import Mount

Kind = Literal["folder", "file", "link", ""]  # "" does not exist

# One step: the name of a function in `rootfs.STEPS`, a path and further arguments.
Step = tuple[str, ...]

# Folders that are not those of the host, with their modes.
PRIVATE = {
    "/home": "755",
    "/media": "755",
    "/mnt": "755",
    "/root": "700",
    "/run": "755",
    "/tmp": "1777",  # noqa: S108 - a path of the container
    "/var/tmp": "1777",  # noqa: S108
    "/run/lock": "1777",
}
SPECIAL = {"/proc": "proc", "/sys": "sysfs", "/dev/pts": "devpts", "/dev/mqueue": "mqueue"}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}
SHM_SIZE = "64m"  # as container runtimes do; an emptyDir with medium Memory at /dev/shm is larger
SKIPPED = {"dev", "proc", "sys", "lost+found"}
MOST_LINKS = 40
MOST_ENTRIES = 4096


class PlanError(Exception):
    """A mount is not possible."""


class HostFiles(Protocol):
    """Read access to the file system of the host."""

    def kind(self, path: str) -> Kind:
        """Return what is at a path, without following it if it is a symbolic link."""
        ...

    def target(self, path: str) -> str:
        """Return the target of a symbolic link."""
        ...

    def names(self, path: str) -> Sequence[str]:
        """Return the entries of a folder."""
        ...


@dataclass
class _Own:
    """A new writable folder."""

    mode: str = "755"
    children: "dict[str, _Node]" = field(default_factory=dict)
    kind: Kind = "folder"

    def steps(self, path: str, *, in_own: bool) -> Iterator[Step]:
        yield ("folder", path, self.mode) if in_own else ("tmpfs", path, self.mode, "")


@dataclass
class _Host:
    """A folder or file of the host. Within a folder of the host it needs no mount of its own."""

    path: str
    kind: Kind
    children: "dict[str, _Node]" = field(default_factory=dict)

    def steps(self, path: str, *, in_own: bool) -> Iterator[Step]:
        if in_own:
            yield _mountpoint(path, self.kind)
            yield ("bind", path, self.path)
            yield ("read_only", path)


@dataclass
class _Mounted:
    """A mount of the container."""

    mount: Mount
    kind: Kind
    children: "dict[str, _Node]" = field(default_factory=dict)

    def steps(self, path: str, *, in_own: bool) -> Iterator[Step]:
        if in_own:
            yield _mountpoint(path, self.kind)
        if self.mount.source is None:
            yield ("tmpfs", path, "1777", self.mount.size or "")
        else:
            yield ("bind", path, self.mount.source)
        for name, child in self.children.items():
            yield from _mountpoints(_join(path, name), child)
        if self.mount.read_only:
            yield ("read_only", path)


@dataclass
class _Inside:
    """A folder in a mount of the container, above another mount."""

    children: "dict[str, _Node]" = field(default_factory=dict)
    kind: Kind = "folder"

    def steps(self, path: str, *, in_own: bool) -> Iterator[Step]:
        yield from ()


@dataclass
class _Link:
    target: str
    kind: Kind = "link"

    def steps(self, path: str, *, in_own: bool) -> Iterator[Step]:
        yield ("link", path, self.target)


@dataclass
class _Device:
    path: str
    kind: Kind = "file"

    def steps(self, path: str, *, in_own: bool) -> Iterator[Step]:
        yield ("file", path)
        yield ("bind", path, self.path)


@dataclass
class _Special:
    name: str
    kind: Kind = "folder"

    def steps(self, path: str, *, in_own: bool) -> Iterator[Step]:
        if in_own:
            yield ("folder", path, "755")
        yield (self.name, path)


_Folder = _Own | _Host | _Mounted | _Inside
_Node = _Folder | _Link | _Device | _Special


def _parts(path: str) -> list[str]:
    return [part for part in PurePosixPath(path).parts if part != "/"]


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _mountpoint(path: str, kind: Kind) -> Step:
    return ("folder", path, "755") if kind == "folder" else ("file", path)


def _mountpoints(path: str, node: _Node) -> Iterator[Step]:
    yield _mountpoint(path, node.kind)
    if isinstance(node, _Inside):
        for name, child in node.children.items():
            yield from _mountpoints(_join(path, name), child)


def _emit(path: str, node: _Node, parent: _Folder) -> Iterator[Step]:
    """Return the steps that create a node and everything below it."""
    yield from node.steps(path, in_own=isinstance(parent, _Own))
    if isinstance(node, _Folder):
        for name in sorted(node.children):
            yield from _emit(_join(path, name), node.children[name], node)


@dataclass
class _Walk:
    """Where a path leads: the folders passed, with the names taken, and what is missing."""

    here: _Folder
    rest: list[str]
    passed: list[tuple[_Folder, str]] = field(default_factory=list)
    links: int = 0


class _Tree:
    """The file system of a container while it is planned."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self.root = _Own()

    def _open(self, folder: _Host) -> _Own:
        """Return a new folder with the entries of a folder of the host."""
        names = self._host.names(folder.path)
        if len(names) > MOST_ENTRIES:
            raise PlanError(f"{folder.path} has more than {MOST_ENTRIES} entries")
        found = {name: self._lookup(_join(folder.path, name)) for name in names}
        entries: dict[str, _Node] = {name: node for name, node in found.items() if node}
        return _Own(children={**entries, **folder.children})

    def _lookup(self, path: str) -> _Link | _Host | None:
        kind = self._host.kind(path)
        if kind == "link":
            return _Link(self._host.target(path))
        return _Host(path, kind) if kind else None

    def _child(self, folder: _Folder, name: str) -> _Node | None:
        if name in folder.children or not isinstance(folder, _Host):
            return folder.children.get(name)
        node = self._lookup(_join(folder.path, name))
        if isinstance(node, _Host):
            folder.children[name] = node
        return node

    def _follow(self, walk: _Walk, link: _Link) -> None:
        walk.links += 1
        if walk.links > MOST_LINKS:
            raise PlanError(f"{link.target}: too many levels of symbolic links")
        walk.rest = [*_parts(link.target), *walk.rest]
        if link.target.startswith("/"):
            walk.passed, walk.here = [], self.root

    def _walk(self, path: str) -> _Walk:
        walk = _Walk(self.root, _parts(path))
        while walk.rest:
            name = walk.rest.pop(0)
            if name == "..":
                if walk.passed:
                    walk.here = walk.passed.pop()[0]
                continue
            node = self._child(walk.here, name)
            if isinstance(node, _Link):
                self._follow(walk, node)
                continue
            walk.passed.append((walk.here, name))
            if not isinstance(node, _Folder):
                break
            walk.here = node
        return walk

    def place(self, path: str, node: _Node) -> None:
        """Put a node at a path; create and replace the folders above it as necessary."""
        walk = self._walk(path)
        if not walk.passed:
            raise PlanError(f"{path}: cannot be the root folder")
        folder, name = walk.passed[-1]
        exists = name in folder.children
        if walk.rest and exists:
            raise PlanError(f"{path}: is not in a folder that can contain mounts")
        if isinstance(folder, _Host):
            if folder.kind != "folder":
                raise PlanError(f"{path}: {folder.path} is not a folder")
            if not exists:
                folder = self._replace(walk.passed, folder)
        for child in walk.rest:
            parent = _Inside() if isinstance(folder, _Mounted | _Inside) else _Own()
            folder.children[name] = parent
            folder, name = parent, child
        folder.children[name] = node

    def _replace(self, passed: list[tuple[_Folder, str]], folder: _Host) -> _Own:
        """Replace the last folder passed, which belongs to the host, by a new one."""
        above, name = passed[-2]
        opened = self._open(folder)
        above.children[name] = opened
        return opened

    def ensure_folder(self, path: str) -> None:
        """Make sure that a folder exists, except below a mount of the container."""
        walk = self._walk(path)
        if not walk.passed:
            return
        folder, name = walk.passed[-1]
        if not isinstance(folder, _Mounted | _Inside) and name not in folder.children:
            self.place(path, _Own())

    def steps(self) -> list[Step]:
        """Return the steps that create everything below the root."""
        names = sorted(self.root.children)
        return [
            step
            for name in names
            for step in _emit(f"/{name}", self.root.children[name], self.root)
        ]


def _host_folders(tree: _Tree, host: HostFiles) -> None:
    for name in set(host.names("/")) - SKIPPED:
        path = f"/{name}"
        kind = host.kind(path)
        if kind == "link":
            tree.root.children[name] = _Link(host.target(path))
        elif kind == "folder" and path not in PRIVATE:
            tree.root.children[name] = _Host(path, kind)


def _private_folders(tree: _Tree, host: HostFiles, hidden: Sequence[str]) -> None:
    for path, mode in PRIVATE.items():
        tree.place(path, _Own(mode))
    for path in sorted(hidden):
        if host.kind(path) == "folder" and not _below(path, list(PRIVATE)):
            tree.place(path, _Own("700"))


def _devices(tree: _Tree) -> None:
    tree.root.children["dev"] = _Own()
    for device in DEVICES:
        tree.place(f"/dev/{device}", _Device(f"/dev/{device}"))
    for path, name in SPECIAL.items():
        tree.place(path, _Special(name))
    for path, target in LINKS.items():
        tree.place(path, _Link(target))
    shm = Mount("/dev/shm", None, size=SHM_SIZE)  # noqa: S108 - a path of the container
    tree.place(shm.target, _Mounted(shm, "folder"))


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _source_kind(host: HostFiles, path: str) -> Kind:
    """Return the kind of a mount's source, with its last links followed."""
    for _ in range(MOST_LINKS):
        kind = host.kind(path)
        if kind != "link":
            return kind
        path = str(PurePosixPath(path).parent / host.target(path))
    raise PlanError(f"{path}: too many levels of symbolic links")


def plan(
    host: HostFiles,
    mounts: Sequence[Mount],
    *,
    expose: Sequence[str] = (),
    hidden: Sequence[str] = (),
    cwd: str = "/",
) -> list[Step]:
    """Return the steps that build the root file system of a container, except its root itself.

    `expose` are folders that remain visible below folders that are private, `hidden` are further
    private folders.
    """
    tree = _Tree(host)
    _host_folders(tree, host)
    _private_folders(tree, host, hidden)
    _devices(tree)
    private = [*PRIVATE, *hidden]
    exposed = [Mount(path, path, read_only=True) for path in expose if _below(path, private)]
    for mount in sorted([*exposed, *mounts], key=lambda mount: len(_parts(mount.target))):
        kind: Kind = "folder"
        if mount.source is not None:
            kind = _source_kind(host, mount.source)
            if not kind:
                raise PlanError(
                    f"error mounting {mount.source!r} to {mount.target!r}: "
                    f"stat {mount.source}: no such file or directory"
                )
        tree.place(mount.target, _Mounted(mount, kind))
    tree.ensure_folder(cwd or "/")
    return tree.steps()
