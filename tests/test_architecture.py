"""The house: imports go one way, files stay small, and some patterns have no place here."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from highrank_plugins.heads.base import HEADS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "highrank_plugins"
MODULES = sorted(PACKAGE.rglob("*.py"))

# cli → benchmarks → studies → reports → results → inference → adapters → training → data
#     → measures → analysis, evaluation, huggingface → trunks → heads → losses → own_layers → common
ADAPTERS = {"models", "criterions", "tasks", "optim"}
PATCHES = {"hooks", "compat"}  # what adapters alone import
LEVELS = [
    {"common"}, {"own_layers"}, {"losses"}, {"heads"}, {"trunks"},
    {"analysis", "evaluation", "huggingface"}, {"measures"}, {"data"}, {"training"}, ADAPTERS,
    {"inference"}, {"results"}, {"reports"}, {"studies"}, {"benchmarks"}, {"cli"},
]  # fmt: skip
WITHOUT_FAIRSEQ = {
    "common", "own_layers", "losses", "heads", "trunks", "analysis", "evaluation", "huggingface",
    "measures",
}  # fmt: skip


def part_of(module: Path) -> str:
    """Return `heads` for highrank_plugins/heads/mos.py; empty for the files at the top."""
    return module.relative_to(PACKAGE).parts[0] if module.parent != PACKAGE else ""


def names_in(tree: ast.AST, module: Path) -> Iterator[str]:
    """Yield full names of what a file imports, also inside functions."""
    location = module.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = location[: len(location) - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def allowed_parts(part: str) -> set[str]:
    if part in ("", *PATCHES):
        return {part, "common"}
    level = next(index for index, parts in enumerate(LEVELS) if part in parts)
    below = set().union(*LEVELS[:level])
    return below | {part} | (PATCHES if part in ADAPTERS else set())


def own_parts(names: Iterable[str]) -> set[str]:
    """Return the parts of this package among imported names."""
    split = (name.split(".") for name in names)
    return {
        name[1]
        for name in split
        if name[0] == PACKAGE.name and len(name) > 1 and (PACKAGE / name[1]).is_dir()
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way_and_no_call_is_unsafe(module):
    tree = ast.parse(module.read_text())
    names = [*names_in(tree, module)]
    wrong = own_parts(names) - allowed_parts(part_of(module))
    assert not wrong, f"{module.relative_to(ROOT)} may not import {sorted(wrong)}"
    if part_of(module) in WITHOUT_FAIRSEQ:
        roots = {name.split(".")[0] for name in names}
        assert not roots & {"fairseq", "fairseq_cli", "omegaconf", "hydra"}
    assert list(unsafe_places(tree)) == []


def test_the_checks_see_every_form_of_import():
    code = """
import highrank_plugins.heads.mixtures
from highrank_plugins import models
def f():
    from ..heads import build_head
    from . import chunked
    import fairseq.utils
"""
    names = [*names_in(ast.parse(code), PACKAGE / "losses" / "module.py")]
    own = {"heads.mixtures", "models", "heads.build_head", "losses.chunked"}
    assert {*names} == {f"highrank_plugins.{name}" for name in own} | {"fairseq.utils"}
    assert own_parts(names) - allowed_parts("losses") == {"heads", "models"}


def source_files() -> list[Path]:
    folders = [PACKAGE, ROOT / "tests", ROOT / "scripts", ROOT / "recipes"]
    return [
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".sh")
    ]


def test_files_are_small_and_similar_names_are_suggested_in_one_place():
    files = [path for path in source_files() if ROOT / "tests" not in path.parents]
    users = [path for path in files if "get_close_matches" in path.read_text()]
    assert users == [PACKAGE / "common" / "names.py"]
    lengths = {path: len(path.read_text().splitlines()) for path in source_files()}
    too_long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > 350}
    assert not too_long


def unsafe_places(tree: ast.AST) -> Iterator[str]:
    """Find calls that run code of a file or skip torch's check, and handlers that hide errors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "weights_only":
            if not (isinstance(node.value, ast.Constant) and node.value.value is True):
                yield f"line {node.value.lineno}: weights_only other than True"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("eval", "exec"):
                yield f"line {node.lineno}: {node.func.id}()"
        elif isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if caught in ("", "Exception", "BaseException") and not raises_again:
                yield f"line {node.lineno}: except {caught}"


def test_unsafe_code_is_found():
    for code in (
        "torch.load(p, weights_only=False)",
        "torch.load(p, weights_only=safe)",
        "eval(text)",
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept Exception as error:\n    raise ValueError(error)",
        "try:\n    f()\nexcept Exception:\n    if g:\n        raise",
    ):
        assert len(list(unsafe_places(ast.parse(code)))) == 1, code
    raised_again = "try:\n    f()\nexcept Exception:\n    g()\n    raise"
    assert list(unsafe_places(ast.parse(raised_again))) == []


def test_files_name_no_machine_and_have_no_open_tasks():
    # in pieces, since this file is searched, too
    words = ["/wor" + "k/", "/ro" + "ot/", r"\.\./sha" + "red", r"\bTO" + r"DO\b", "FIX" + "ME"]
    unwanted = re.compile("|".join(words))
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.*")]
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in {*source_files(), *documents, ROOT / "setup.py", ROOT / "pyproject.toml"}
        if path.is_file() and (match := unwanted.search(path.read_text(errors="replace")))
    ]
    assert not found


def module_name(module: Path) -> str:
    return ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(module: Path) -> set[str]:
    """Return the modules of this package that a file imports, but for its annotations."""
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    known = {module_name(path) for path in MODULES}
    found = (name if name in known else name.rpartition(".")[0] for name in names_in(tree, module))
    return {name for name in found if name in known}


def circles(imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that lie in a circle, or import one that does."""
    imports = dict(imports)
    while done := [name for name, needed in imports.items() if not needed & imports.keys()]:
        for name in done:
            del imports[name]
    return set(imports)


def test_imports_have_no_cycles():
    """Count imports within functions, too: they hide a circle, and leave it there."""
    assert not circles({module_name(module): imported_modules(module) for module in MODULES})
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"a", "b", "c"}


def test_bash_reads_neither_yaml_nor_options_of_programs():
    """`highrank train configure` resolves both, and writes what the recipes source."""
    tools = r"\b(sed|awk|grep|cut|tr|yq|python3?)\b"
    parsing = re.compile(rf"{tools}[^|]*(\.ya?ml|\bconfig\b)|{tools}.*\$launch|=~ \S*--[a-z]")
    for path in sorted((ROOT / "recipes").rglob("*.sh")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition(" #")[0]
            assert not parsing.search(code), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


# -- heads tell what they are: who asks for a class or a name leaves out the layers of others ------

CLASSES = {HEADS.find(name).__name__ for name in HEADS.names()}
NAMES = CLASSES | {*HEADS.names()}
# where a structure's name decides something outside of heads/ and losses/, and why
ALLOWED = {
    "benchmarks/implementations.py": "plain autograd, as each mixture's paper states it",
    "reports/plots.py": "the same colour for a published layer in every figure; others are grey",
    "reports/fsmt_folder.py": "FSMT of transformers computes a plain softmax alone",
    "models/awd_lstm_lm.py": "the papers' sizes of LSTMs, which differ by structure",
}


def structures_in(tree: ast.AST) -> Iterator[str]:
    """Yield concrete classes of heads, and what is compared with the name of a structure."""
    for node in ast.walk(tree):
        compared: list[ast.AST | None] = []
        if isinstance(node, ast.Name | ast.Attribute | ast.alias):
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "name", "")))
            if name in CLASSES:
                yield f"line {node.lineno}: {name}"
        elif isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            compared = [*node.keys]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        for part in filter(None, compared):
            for constant in ast.walk(part):
                if isinstance(constant, ast.Constant) and constant.value in NAMES:
                    yield f"line {constant.lineno}: {constant.value!r}"


def test_no_other_module_names_a_structure():
    for module in MODULES:
        if part_of(module) not in ("heads", "losses"):
            found = list(structures_in(ast.parse(module.read_text())))
            name = str(module.relative_to(PACKAGE))
            assert bool(found) == (name in ALLOWED), (name, found)
    for code in (
        "from highrank_plugins.heads import Mixtape",
        "isinstance(head, heads.MixtureOfSoftmaxes)",
        "type(head).__name__ == 'Softmax'",
        "if name in ('mos', 'moc'): pass",
        "{'mixtape': 1}[name]",
        "match name:\n    case 'moc':\n        pass",
    ):
        assert list(structures_in(ast.parse(code))), code
