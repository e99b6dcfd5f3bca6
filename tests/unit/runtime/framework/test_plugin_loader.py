"""Plugins of installed packages: switched on by name, and refused in one line."""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from textwrap import dedent
from typing import Protocol

import pytest

from kftrainer.runtime.framework import plugin_loader
from kftrainer.runtime.framework.plugin_loader import GROUP, PluginLoadError, load_framework

OURS = ["PlainML", "Torch", "MPI", "CoScheduling", "Volcano", "JobSet"]
MODULE = "acme_plugin"
SUBJECT = f"plugin acme ({MODULE}:Acme)"
IMPORT = "from kftrainer.runtime.framework.extension_points import *\n"
GOOD = f"""{IMPORT}
class Acme(EnforceMLPolicy):
    name = "acme"

    def enforce_ml_policy(self, info, job):
        pass
"""
POINTS = (
    "EnforceMLPolicy, EnforcePodGroupPolicy, PodNetwork, ComponentBuilder, TrainJobStatus, "
    "CustomValidation, RuntimeValidation, PolicyExtension, NodeLayoutExtension, WatchExtension, "
    "RBACExtension"
)


class Install(Protocol):
    def __call__(
        self,
        code: str = GOOD,
        value: str = ...,
        *,
        package: str = ...,
        names: tuple[str, ...] = ...,
    ) -> None: ...


def declare(folder: Path, package: str, *entry_points: str) -> None:
    """Write the metadata of an installed package with these entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *entry_points]))


@pytest.fixture(autouse=True)
def only_packages_of_the_test(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hide the plugins that are installed beside kftrainer; there is always one of those here."""
    elsewhere = tmp_path_factory.mktemp("site-packages")
    declare(elsewhere, "stranger", "stranger = stranger:Stranger")
    monkeypatch.syspath_prepend(elsewhere)

    def within(*, group: str) -> metadata.EntryPoints:
        found = metadata.entry_points(group=group)
        assert "stranger" in found.names
        return metadata.EntryPoints(each for each in found if is_of_the_test(each.dist))

    def is_of_the_test(package: metadata.Distribution | None) -> bool:
        return package is not None and Path(str(package.locate_file(""))) == tmp_path

    monkeypatch.setattr(plugin_loader, "entry_points", within)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package on the path as pip would: its module, and what its metadata declares."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(
        code: str = GOOD,
        value: str = f"{MODULE}:Acme",
        *,
        package: str = "acme",
        names: tuple[str, ...] = ("acme",),
    ) -> None:
        (tmp_path / f"{MODULE}.py").write_text(dedent(code))
        declare(tmp_path, package, *(f"{name} = {value}" for name in names))

    yield installed
    sys.modules.pop(MODULE, None)


def named(*, enabled: tuple[str, ...] = (), disabled: tuple[str, ...] = ()) -> list[str]:
    return [plugin.name for plugin in load_framework(enabled, disabled).plugins]


def refusal(*, enabled: tuple[str, ...] = (), disabled: tuple[str, ...] = ()) -> str:
    with pytest.raises(PluginLoadError) as raised:
        load_framework(enabled, disabled)
    return str(raised.value)


def test_built_in_plugins_run_by_default() -> None:
    assert named() == OURS


def test_those_enabled_run_after_ours_and_in_their_own_order(install: Install) -> None:
    install()
    other = GOOD.replace("acme", "b-side").replace("Acme", "B")
    install(GOOD + other, f"{MODULE}:B", package="beta", names=("b-side",))
    assert named(enabled=("b-side", "acme")) == [*OURS, "b-side", "acme"]


def test_installed_plugin_that_is_not_enabled_is_not_imported(install: Install) -> None:
    install("raise RuntimeError")
    assert (named(), MODULE in sys.modules) == (OURS, False)


def test_those_disabled_do_not_run() -> None:
    assert named(disabled=("Volcano", "CoScheduling")) == ["PlainML", "Torch", "MPI", "JobSet"]


def test_each_framework_has_plugins_of_its_own() -> None:
    one, other = load_framework().plugins, load_framework().plugins
    assert not {id(plugin) for plugin in one} & {id(plugin) for plugin in other}


def test_a_plugin_replaces_a_built_in_one_that_is_disabled(install: Install) -> None:
    install(GOOD.replace('"acme"', '"Torch"'), names=("Torch",))
    without = [name for name in OURS if name != "Torch"]
    assert named(enabled=("Torch",), disabled=("Torch",)) == [*without, "Torch"]


def test_a_plugin_named_as_a_built_in_one_is_refused(install: Install) -> None:
    install(GOOD.replace('"acme"', '"Torch"'), names=("Torch",))
    assert refusal(enabled=("Torch",)) == (
        f"plugin Torch ({MODULE}:Acme) cannot be used: a built-in plugin has this name: "
        "to replace that one, list it in plugins.disabled"
    )


def test_plugin_can_implement_extension_points_structurally(install: Install) -> None:
    install(GOOD.replace("(EnforceMLPolicy)", ""))
    assert named(enabled=("acme",)) == [*OURS, "acme"]


def test_enabling_an_unknown_plugin_lists_the_installed_ones(install: Install) -> None:
    install(names=("b", "a"))
    assert refusal(enabled=("acme",)) == (
        "plugins.enabled: acme: no installed package declares it as an entry point of "
        "kftrainer.plugins; installed are: a, b"
    )


def test_enabling_without_installed_plugins_is_reported() -> None:
    assert refusal(enabled=("acme",)).endswith("installed are: none")


def test_enabling_a_built_in_plugin_is_reported_as_unnecessary() -> None:
    assert refusal(enabled=("Torch",)) == (
        "plugins.enabled: Torch: it is built in, and enabled unless plugins.disabled lists it"
    )


def test_a_name_that_several_packages_declare_is_refused(install: Install) -> None:
    install(package="zeta")
    install(package="beta")
    assert refusal(enabled=("acme",)) == (
        "plugins.enabled: acme: several packages declare it: beta, zeta"
    )


def test_disabling_an_unknown_plugin_lists_the_built_in_ones() -> None:
    assert refusal(disabled=("torch", "Torch", "Gang")) == (
        "plugins.disabled: Gang, torch: not built in: must be one of "
        "PlainML, Torch, MPI, CoScheduling, Volcano, JobSet"
    )


def test_only_status_plugin_cannot_be_disabled() -> None:
    assert refusal(disabled=("JobSet",)) == (
        "no plugin implements TrainJobStatus, which observes the status of TrainJobs"
    )


STATUS = f"""{IMPORT}
class Acme(TrainJobStatus):
    name = "acme"

    def observe_status(self, job, existing):
        pass
"""


def test_a_second_status_plugin_is_refused(install: Install) -> None:
    install(STATUS)
    message = "too many TrainJobStatus plugins are registered: JobSet, acme"
    assert refusal(enabled=("acme",)) == message


def test_another_status_plugin_can_replace_the_built_in_one(install: Install) -> None:
    install(STATUS)
    assert named(enabled=("acme",), disabled=("JobSet",)) == [*OURS[:-1], "acme"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import nonesuch", "ModuleNotFoundError: No module named 'nonesuch'"),
        ("from os import nonesuch", "ImportError: cannot import name 'nonesuch' from 'os'"),
        ("class Acme:\n  def", "SyntaxError: invalid syntax"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise RuntimeError('one\\n\\n  two')", "RuntimeError: one two"),
        ("raise RuntimeError", "RuntimeError"),
        ("raise SystemExit", "SystemExit"),
        ("import sys; sys.exit('usage: acme')", "SystemExit: usage: acme"),
        ("class Other: ...", f"AttributeError: module '{MODULE}' has no attribute 'Acme'"),
    ],
)
def test_module_with_import_error_is_reported(install: Install, code: str, text: str) -> None:
    install(code)
    message = refusal(enabled=("acme",))
    assert message.startswith(f"{SUBJECT} cannot be imported: {text}")
    assert "\n" not in message


def test_missing_module_is_reported(install: Install) -> None:
    install(value="acme_nonesuch:Acme")
    assert refusal(enabled=("acme",)) == (
        "plugin acme (acme_nonesuch:Acme) cannot be imported: "
        "ModuleNotFoundError: No module named 'acme_nonesuch'"
    )


def test_a_long_reason_is_cut(install: Install) -> None:
    install("raise RuntimeError('x' * 10_000)")
    assert refusal(enabled=("acme",)).endswith(f"RuntimeError: {'x' * 500}…")


def test_rejection_keeps_its_cause(install: Install) -> None:
    install("1 / 0")
    with pytest.raises(PluginLoadError) as raised:
        load_framework(["acme"])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_interrupt_during_the_import_is_propagated(install: Install) -> None:
    install("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_framework(["acme"])


def test_an_entry_point_that_names_a_module_is_refused(install: Install) -> None:
    install(value=MODULE)
    assert refusal(enabled=("acme",)) == (
        f"plugin acme ({MODULE}) cannot be used: "
        "it must be a class, as in module:Class, not a module"
    )


def test_an_entry_point_that_names_nothing_is_refused(install: Install) -> None:
    install(value="acme-plugin:Acme")
    assert refusal(enabled=("acme",)) == (
        "plugin acme (acme-plugin:Acme) cannot be used: "
        "its entry point must be of the form module:Class"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    name",
            "    def __init__(self, url): ...\n    name",
            "created: TypeError: Acme.__init__() missing 1 required positional argument: 'url'",
        ),
        (
            "    name",
            "    def __init__(self): raise KeyError('ACME_URL')\n    name",
            "created: KeyError: 'ACME_URL'",
        ),
        ("class Acme(EnforceMLPolicy)", "def Acme()", "used: it must be a class, as in module:"),
        ("def enforce_ml_policy", "def enforce", "used: it has no method enforce_ml_policy"),
        ("(EnforceMLPolicy)", "(EnforceMLPolicy, PodNetwork)", "used: it has no method identify_"),
        ("name =", "title =", 'used: it has no name: its class must set `name = "acme"`'),
        ('"acme"', '""', 'used: it has no name: its class must set `name = "acme"`'),
        ('"acme"', "7", 'used: it has no name: its class must set `name = "acme"`'),
        ('"acme"', '"Acme"', "used: its name is Acme, but its entry point is named acme"),
        (
            "self, info, job",
            "self, info",
            "used: enforce_ml_policy must take (info, job), as in EnforceMLPolicy",
        ),
        (
            "self, info, job",
            "self, info, job, *, force",
            "used: enforce_ml_policy must take (info, job), as in EnforceMLPolicy",
        ),
        (
            "    def enforce",
            "    async def enforce",
            "used: enforce_ml_policy is async: planning is synchronous",
        ),
        (
            "pass",
            "yield",
            "used: enforce_ml_policy is a generator: it must return a value, as in EnforceMLPolicy",
        ),
        (
            "        pass",
            "        pass\n    identify_pod_network = 3",
            "used: identify_pod_network must take (info, job), as in PodNetwork",
        ),
        (
            "        pass",
            "        pass\n    @property\n    def build_components(self): return 1 / 0",
            "inspected: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_invalid_plugin_class_is_reported(
    install: Install, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    install(GOOD.replace(old, new))
    assert refusal(enabled=("acme",)).startswith(f"{SUBJECT} cannot be {message}")


def test_class_without_extension_points_error_lists_them(install: Install) -> None:
    install("class Acme:\n    name = 'acme'\n    def enforce(self, info, job): ...\n")
    assert refusal(enabled=("acme",)) == (
        f"{SUBJECT} cannot be used: it implements none of the extension points: {POINTS}"
    )


def test_all_signature_errors_are_reported_together(install: Install) -> None:
    install(
        f"""{IMPORT}
class Acme(ComponentBuilder, WatchExtension):
    name = "acme"
    async def build_components(self, info): ...
    def declare_watches(self, info): ...
"""
    )
    assert refusal(enabled=("acme",)) == (
        f"{SUBJECT} cannot be used: "
        "build_components is async: planning is synchronous; "
        "build_components must take (info, job), as in ComponentBuilder; "
        "declare_watches must take (), as in WatchExtension"
    )


def test_plugin_with_failing_watches_is_rejected_at_startup(install: Install) -> None:
    install(
        f"""{IMPORT}
class Acme(WatchExtension):
    name = "acme"
    def declare_watches(self): return ["secrets"]
"""
    )
    message = "plugin acme failed: TypeError: it returned a str instead of a Watch"
    assert refusal(enabled=("acme",)) == message


def test_parameters_may_have_other_names_and_more_of_them_defaults(install: Install) -> None:
    install(GOOD.replace("self, info, job", "self, plan, train_job, verbose=False"))
    assert named(enabled=("acme",)) == [*OURS, "acme"]
