"""What the layout test checks, as functions of a project's root: each returns the lines that break a rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT_PACKAGE = "decodestep"
NATIVE = "decodestep._native"

# A module may import from its own layer and from those before it.
LAYERS = [
    ("errors",),
    ("_base",),
    ("random",),
    ("weights",),
    ("ops",),
    ("npu_schedule",),
    ("processors", "stopping"),
    ("constraints",),
    ("sampling",),
    ("files",),
    ("tokenizers",),
    ("chat",),
    ("decoding",),
    ("families",),
    ("models",),
    ("generation",),
    ("explain",),
    ("serving",),
    ("integrations",),
    ("cli",),
    ("__main__",),
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Documented names of what has moved to a later layer: modules that only hand on the module beside them.
ALIASES = {"ops.mla_prolog.schedule": "npu_schedule"}

# Who may import the native core: `ops/<stem>/cpu.py`, and these, which own native objects.
NATIVE_OWNERS = {
    "_base.float_environment",
    "_base.threads",  # the instruction set, and where workers run
    "files.checked_bytes",
    "integrations.onnxruntime",  # the entry that onnxruntime looks for
    "ops.decode_step.rows",  # the steps of a row
    "random.cpu",
    "sampling.token_history",
    "weights.file_weight",
    "weights.native",
}

# The folders of tests besides those of the package's: of the native core, and of the project as a whole.
OTHER_TEST_ROOMS = {"core", "goldens", "project"}

# The folders of csrc; a file may include from its own folder and from those before it.
CORE_LAYERS = [
    ("core",),
    ("random",),
    ("simd",),
    ("linear", "elementwise", "tensor_scatter", "sampling/row"),
    ("attention", "mixture_of_experts", "mla_prolog", "recurrent", "sampling/decode_step", "sampling/top_k_top_p_sample"),
    ("decoder",),
    ("bindings",),
]
CORE_LEVEL = {name: level for level, names in enumerate(CORE_LAYERS) for name in names}
TARGET_MACRO = re.compile(r"\b(__(AVX\w*|SSE\w*|FMA|F16C|BMI\w*|ARM_NEON\w*|ARM_FEATURE\w*)|DECODESTEP_(FAMILY_\w+|HAS_\w+))\b")


class Import(NamedTuple):
    """One import of `target` by `source`, both modules of the package without its name: `ops.linear.cpu`."""

    source: str
    target: str
    line: int
    typing_only: bool  # in `if TYPE_CHECKING:`: never executed
    deferred: bool  # in a function: executed when it is called


class _Reader(ast.NodeVisitor):
    """Collects a file's imports from the package, and its uses of the package's public names."""

    def __init__(self, project: Project, source: str, is_package: bool) -> None:
        self.project, self.source, self.is_package = project, source, is_package
        self.found: list[Import] = []
        self.aliases: set[str] = set()  # names that stand for the package itself
        self.typing_only = self.deferred = False

    def add(self, name: str, line: int) -> None:
        self.found.append(Import(self.source, name, line, self.typing_only, self.deferred))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            package, _, rest = alias.name.partition(".")
            if package == ROOT_PACKAGE:
                if rest:
                    self.add(rest, node.lineno)
                if not rest or alias.asname is None:
                    self.aliases.add(alias.asname or package)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            here = [ROOT_PACKAGE, *self.source.split(".")]
            here = here[: len(here) - node.level + self.is_package]
            module = ".".join([*here, *([node.module] if node.module else [])])
        else:
            module = node.module or ""
        package, _, rest = module.partition(".")
        if package == ROOT_PACKAGE:
            for alias in node.names:
                self.add(self.project.home(f"{rest}.{alias.name}" if rest else alias.name), node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, value = [node.attr], node.value
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name) and value.id in self.aliases:
            self.add(self.project.home(".".join(reversed(parts))), node.lineno)
        else:
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        before = self.typing_only
        self.typing_only = before or "TYPE_CHECKING" in ast.unparse(node.test)
        for child in node.body:
            self.visit(child)
        self.typing_only = before
        for child in node.orelse:
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self.deferred = self.deferred, True
        self.generic_visit(node)
        self.deferred = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815


class Project:
    """A tree with src/decodestep and the rooms around it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "src" / ROOT_PACKAGE
        self.files = {self._module(path): path for path in sorted(self.package.rglob("*.py"))}
        self.files.pop("", None)  # the package's own __init__ names everything, by design
        self.public = self._public_names()
        self.imports = self._imports()
        self.stems = sorted(path.parent.name for path in self.package.glob("ops/*/__init__.py"))

    def _module(self, path: Path) -> str:
        return ".".join(path.relative_to(self.package).with_suffix("").parts).removesuffix("__init__").rstrip(".")

    def _public_names(self) -> dict[str, str]:
        """The root's names and the modules that they come from, as its block for type checkers has them."""
        root = self.package / "__init__.py"
        tree = ast.parse(root.read_text() if root.exists() else "")
        return {
            alias.asname or alias.name: (node.module or "").removeprefix(ROOT_PACKAGE).lstrip(".")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{ROOT_PACKAGE}.")
            for alias in node.names
        }

    def home(self, name: str) -> str:
        """The module that `decodestep.<name>` is or lies in."""
        first, _, rest = name.partition(".")
        if first in self.public and first not in self.files:
            name = f"{self.public[first]}.{rest}".rstrip(".")
        elif first not in self.files and first not in (*LEVEL, "_native") and not first.startswith("__"):
            name = f"ops.{name}"  # the root serves the operators' own names too
        parts = name.split(".")
        while len(parts) > 1 and ".".join(parts) not in self.files:
            parts.pop()
        return ".".join(parts)

    def _imports(self) -> list[Import]:
        found = []
        for module, path in self.files.items():
            reader = _Reader(self, module, path.name == "__init__.py")
            reader.visit(ast.parse(path.read_text()))
            found += [edge for edge in reader.found if not edge.target.startswith("__")]  # as ds.__version__
        return found


def layer(module: str) -> int:
    """The level of a module's first part; what has no layer may be imported by nobody."""
    return LEVEL.get(module.split(".")[0], len(LAYERS))


def without_layer(project: Project) -> list[str]:
    return [f"{module} has no layer" for module in project.files if module.split(".")[0] not in LEVEL]


def upward_imports(project: Project) -> list[str]:
    """Imports from a later layer, those for type checkers alone included: whoever reads a type has to go there too."""
    return [
        f"{edge.source}:{edge.line} imports {edge.target}"
        for edge in project.imports
        if edge.target != "_native" and layer(edge.target) > layer(edge.source) and ALIASES.get(edge.source) != edge.target
    ]


def cycles(project: Project) -> list[str]:
    """Groups of modules that import each other, in functions too; imports for type checkers alone are never executed."""
    graph: dict[str, set[str]] = {module: set() for module in project.files}
    for edge in project.imports:
        if not edge.typing_only and edge.target in graph and edge.target != edge.source:
            graph[edge.source].add(edge.target)
    return [" <-> ".join(sorted(group)) for group in _strongly_connected(graph) if len(group) > 1]


def _strongly_connected(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Those modules that each reach all others of their group."""
    reach = {module: _reachable(graph, module) for module in graph}
    groups, seen = [], set[str]()
    for module in graph:
        if module not in seen:
            group = {other for other in reach[module] if module in reach[other]} | {module}
            seen |= group
            groups.append(group)
    return groups


def _reachable(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def _may_be_native(module: str) -> bool:
    return module in NATIVE_OWNERS or re.fullmatch(r"ops\.\w+\.cpu", module) is not None


def native_imports(project: Project) -> list[str]:
    return [
        f"{edge.source}:{edge.line} imports the native core"
        for edge in project.imports
        if edge.target == "_native" and not _may_be_native(edge.source)
    ]


def idle_native_owners(project: Project) -> list[str]:
    """Names in NATIVE_OWNERS that need not stand there."""
    using = {edge.source for edge in project.imports if edge.target == "_native"}
    return sorted(NATIVE_OWNERS - using)


def native_references(project: Project) -> list[str]:
    """References whose import loads kernels: a reference is what kernels are tested against.

    Followed are the imports that loading a module executes, not those in functions, and not the packages around a module:
    an operator's own package offers every backend.
    """
    graph: dict[str, set[str]] = {module: set() for module in project.files}
    for edge in project.imports:
        if not (edge.typing_only or edge.deferred):
            graph[edge.source].add(edge.target)
    references = [module for module in project.files if re.fullmatch(r"ops\.\w+\.reference", module)]
    return [
        f"{module} imports {target}"
        for module in references
        for target in sorted(_reachable(graph, module))
        if target == "_native" or re.fullmatch(r"ops\.\w+\.(cpu|triton)", target)
    ]


def missing_rooms(project: Project) -> list[str]:
    missing = []
    for stem in project.stems:
        folder = project.package / "ops" / stem
        rooms = [
            folder / "reference.py",
            project.root / "tests" / "ops" / f"test_{stem}.py",
            project.root / "benchmarks" / f"bench_{stem}.py",
            project.root / "docs" / "ops" / f"{stem}.md",
        ]
        missing += [str(room.relative_to(project.root)) for room in rooms if not room.exists()]
        if (folder / "cpu.py").exists() and not list(project.root.glob(f"csrc/**/{stem}.cpp")):
            missing.append(f"csrc/**/{stem}.cpp")
        if not ast.get_docstring(ast.parse((folder / "__init__.py").read_text())):
            missing.append(f"the docstring of ops/{stem}/__init__.py")
    return missing


def test_rooms(project: Project) -> list[str]:
    """Rooms of the package without tests, and folders and files of tests that are none of these rooms."""
    folder = project.root / "tests"
    tested = {path.relative_to(folder).parts[0] for path in folder.rglob("test_*.py")}
    rooms = {path.parent.name for path in project.package.glob("*/__init__.py")}
    missing = [f"tests/{room} is missing" for room in sorted(rooms - tested)]
    return missing + [f"tests/{name} is no room" for name in sorted(tested - rooms - OTHER_TEST_ROOMS)]


def long_files(project: Project, limit: int = 400) -> list[str]:
    """Files in which two things live."""
    lines = {module: len(path.read_text().splitlines()) for module, path in project.files.items()}
    return [f"{module} has {count} lines" for module, count in lines.items() if count > limit]


def texts_as_values(project: Project) -> list[str]:
    """Errors that give a text of their own as the value that they got: a value is quoted, and words are `Words`."""
    place = {"refuse": 3, "require": 4}
    found = []
    for module, path in project.files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if name in place and len(node.args) > place[name] and _is_text(node.args[place[name]]):
                found.append(f"{module}:{node.lineno} got {ast.unparse(node.args[place[name]])}")
    return found


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("repr", "ascii", "describe")
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def core_files(project: Project) -> dict[str, str]:
    """The C++ files, by their path from csrc on."""
    root = project.root / "csrc"
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.suffix in (".h", ".cpp")}


def target_conditions(project: Project) -> list[str]:
    """Conditions on the instruction set outside csrc/simd: algorithms are written once, on its vector type."""
    return [
        f"csrc/{name}:{number} names {found.group()}"
        for name, text in core_files(project).items()
        if not name.startswith("simd/")
        for number, line in enumerate(text.splitlines(), 1)
        if (found := TARGET_MACRO.search(line))
    ]


def upward_includes(project: Project) -> list[str]:
    wrong = []
    for name, text in core_files(project).items():
        folder = name.rpartition("/")[0]
        if folder not in CORE_LEVEL:
            wrong.append(f"csrc/{folder} has no layer")
            continue
        for target in re.findall(r'^#include "([^"\n]+)/[^/"\n]+"', text, re.M):
            if target != folder and CORE_LEVEL.get(target, len(CORE_LAYERS)) >= CORE_LEVEL[folder]:
                wrong.append(f"csrc/{name} includes from {target}")
    return wrong
