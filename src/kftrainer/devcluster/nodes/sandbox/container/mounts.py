"""The plan of a container's root file system: the mounts that the shim executes in order.

There is no overlay: the root is a tmpfs, the top-level folders of the host are bound read-only,
and folders that would show private files are empty and writable. A mount point that does not exist
on the host cannot be created in a read-only folder. Such a folder is therefore replaced by a new
folder, into which its entries are bound one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, Protocol

from kftrainer.devcluster.nodes.sandbox.protocol import Mount

Kind = Literal["folder", "file", "link", ""]  # "" does not exist

# One step: a name from the list in `rootfs.execute`, and its arguments. The first is always a path.
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


@dataclass
class _Host:
    """A folder or file of the host."""

    path: str
    kind: Kind
    children: "dict[str, _Node]" = field(default_factory=dict)


@dataclass
class _Link:
    target: str


@dataclass
class _Device:
    path: str


@dataclass
class _Special:
    kind: str


@dataclass
class _Mounted:
    """A mount of the container."""

    mount: Mount
    kind: Kind
    children: "dict[str, _Node]" = field(default_factory=dict)


_Folder = _Own | _Host | _Mounted
_Node = _Folder | _Link | _Device | _Special


def _parts(path: str) -> list[str]:
    return [part for part in PurePosixPath(path).parts if part != "/"]


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


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
        return _Own(children={**self._entries(folder.path, names), **folder.children})

    def _entries(self, folder: str, names: Sequence[str]) -> "dict[str, _Node]":
        found = {}
        for name in names:
            node = self._lookup(_join(folder, name))
            if node is not None:
                found[name] = node
        return found

    def _lookup(self, path: str) -> "_Link | _Host | None":
        kind = self._host.kind(path)
        if kind == "link":
            return _Link(self._host.target(path))
        return _Host(path, kind) if kind else None

    def _walk(self, path: str) -> tuple[list[tuple[_Folder, str]], list[str]]:
        """Follow a path; return the folders passed, with the names taken, and what is missing."""
        rest = _parts(path)
        passed: list[tuple[_Folder, str]] = []
        here: _Folder = self.root
        links = 0
        while rest:
            name = rest.pop(0)
            if name == "..":
                if passed:
                    here = passed.pop()[0]
                continue
            node: _Node | None = here.children.get(name)
            if node is None and isinstance(here, _Host):
                node = self._lookup(_join(here.path, name))
                if isinstance(node, _Host):
                    here.children[name] = node
            if isinstance(node, _Link):
                links += 1
                if links > MOST_LINKS:
                    raise PlanError(f"{path}: too many levels of symbolic links")
                rest = [*_parts(node.target), *rest]
                if node.target.startswith("/"):
                    passed, here = [], self.root
                continue
            passed.append((here, name))
            if node is None or isinstance(node, _Device | _Special):
                return passed, rest
            here = node
        return passed, rest

    def place(self, path: str, node: _Node) -> None:
        """Put a node at a path; create and replace the folders above it as necessary."""
        passed, rest = self._walk(path)
        if not passed:
            raise PlanError(f"{path}: cannot be the root folder")
        folder, name = passed[-1]
        if isinstance(folder, _Host) and folder.kind != "folder":
            raise PlanError(f"{path}: {folder.path} is not a folder")
        exists = name in folder.children
        if isinstance(folder, _Host) and (not exists or rest):
            folder = self._replace(passed)
        for child in rest:
            parent = _Own()
            folder.children[name] = parent
            folder, name = parent, child
        folder.children[name] = node

    def _replace(self, passed: list[tuple[_Folder, str]]) -> _Own:
        """Replace the last folder passed, which belongs to the host, by a new one."""
        folder = passed[-1][0]
        above, name = passed[-2]
        if not isinstance(folder, _Host):
            raise TypeError(folder)
        opened = self._open(folder)
        above.children[name] = opened
        return opened

    def ensure_folder(self, path: str) -> None:
        """Make sure that a folder exists, except below a mount of the container."""
        passed, rest = self._walk(path)
        if not passed:
            return
        folder, name = passed[-1]
        if not isinstance(folder, _Mounted) and (rest or name not in folder.children):
            self.place(path, _Own())


def _mountpoint(path: str, kind: Kind) -> Step:
    return ("folder", path, "755") if kind == "folder" else ("file", path)


def _kind(node: _Node) -> Kind:
    match node:
        case _Host() | _Mounted():
            return node.kind
        case _Device():
            return "file"
        case _Link():
            return "link"
        case _Own() | _Special():
            return "folder"


def _emit_mounted(path: str, node: _Mounted) -> Iterator[Step]:
    mount = node.mount
    if mount.source is None:
        yield ("tmpfs", path, "1777", mount.size or "")
    else:
        yield ("bind", path, mount.source)
    for name, child in node.children.items():
        yield _mountpoint(_join(path, name), _kind(child))
    if mount.read_only:
        yield ("read_only", path)


def _emit(path: str, node: _Node, parent: _Folder | None) -> Iterator[Step]:
    """Return the steps that create a node and everything below it."""
    in_own = isinstance(parent, _Own)
    match node:
        case _Own():
            if in_own:
                yield ("folder", path, node.mode)
            elif parent is not None:
                yield ("tmpfs", path, node.mode, "")
        case _Host():
            if in_own:
                yield _mountpoint(path, node.kind)
                yield ("bind", path, node.path)
                yield ("read_only", path)
        case _Mounted():
            if in_own:
                yield _mountpoint(path, node.kind)
            yield from _emit_mounted(path, node)
        case _Link():
            yield ("link", path, node.target)
        case _Device():
            yield ("file", path)
            yield ("bind", path, node.path)
        case _Special():
            if in_own:
                yield ("folder", path, "755")
            yield (node.kind, path)
    if isinstance(node, _Own | _Host | _Mounted):
        for name in sorted(node.children):
            yield from _emit(_join(path, name), node.children[name], node)


def _base(tree: _Tree, host: HostFiles, hidden: Sequence[str]) -> None:
    for name in host.names("/"):
        path = f"/{name}"
        if name in SKIPPED:
            continue
        kind = host.kind(path)
        if kind == "link":
            tree.root.children[name] = _Link(host.target(path))
        elif kind == "folder" and path not in PRIVATE:
            tree.root.children[name] = _Host(path, kind)
    for path, mode in PRIVATE.items():
        tree.place(path, _Own(mode))
    for path in sorted(hidden):
        if path != "/" and host.kind(path) == "folder" and not _below(path, PRIVATE):
            tree.place(path, _Own("700"))
    tree.root.children["dev"] = _Own()
    for device in DEVICES:
        tree.place(f"/dev/{device}", _Device(f"/dev/{device}"))
    for path, kind_of_mount in SPECIAL.items():
        tree.place(path, _Special(kind_of_mount))
    for path, target in LINKS.items():
        tree.place(path, _Link(target))
    shm = Mount("/dev/shm", None, size=SHM_SIZE)  # noqa: S108 - a path of the container
    tree.place(shm.target, _Mounted(shm, "folder"))


def _below(path: str, folders: Mapping[str, str] | Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _follow(host: HostFiles, path: str) -> tuple[str, Kind]:
    """Return the path and the kind of a mount's source, with its last link followed."""
    for _ in range(MOST_LINKS):
        kind = host.kind(path)
        if kind != "link":
            return path, kind
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
    _base(tree, host, hidden)
    private = [*PRIVATE, *hidden]
    exposed = [Mount(path, path, read_only=True) for path in expose if _below(path, private)]
    for mount in sorted([*exposed, *mounts], key=lambda mount: len(_parts(mount.target))):
        kind: Kind = "folder"
        if mount.source is not None:
            _, kind = _follow(host, mount.source)
            if not kind:
                raise PlanError(
                    f"error mounting {mount.source!r} to {mount.target!r}: "
                    f"stat {mount.source}: no such file or directory"
                )
        tree.place(mount.target, _Mounted(mount, kind))
    tree.ensure_folder(cwd or "/")
    return [step for name in sorted(tree.root.children) for step in _root_steps(tree, name)]


def _root_steps(tree: _Tree, name: str) -> Iterator[Step]:
    yield from _emit(f"/{name}", tree.root.children[name], tree.root)
