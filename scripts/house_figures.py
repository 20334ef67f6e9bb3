"""Print the figures of the code's structure: lines per room, wrappers, the trace of a loss.

    python scripts/house_figures.py              # the tables
    python scripts/house_figures.py --refusals   # every refusal: room, exception, message

`tests/test_budgets.py` holds the lines of each room, and the list of refusals, by these functions.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "highrank_plugins"
LONG, MANY = 45, 8  # lines of a function; arguments
SMALL = 100  # lines below which a file is a crumb, unless it is one registered thing or repair
REGISTERED = (
    "compat", "heads/pointwise", "measures", "models", "criterions", "tasks", "optim",
    "data/corpora",
)  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> list[Path]:
    """Return the product's files."""
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """Return `heads` for highrank_plugins/heads/mos.py, and `top` for files outside of rooms."""
    return path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "top"


def lines_of(paths: list[Path]) -> int:
    """Count the lines of files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def lines_by_room() -> Counter[str]:
    """Return the lines of each room."""
    rooms: Counter[str] = Counter()
    for path in modules():
        rooms[room_of(path)] += lines_of([path])
    return rooms


def nodes(*kinds: type) -> Iterator[tuple[Path, Any]]:
    """Yield all nodes of some kinds, with their files."""
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield path, node


# -- refusals -------------------------------------------------------------------------------------


def refusals() -> list[tuple[str, str, str]]:
    """Return (room, exception, message) of every `raise`; values in a message are {}."""
    found = []
    for path, node in nodes(ast.Raise):
        call = node.exc
        if isinstance(call, ast.Call) and call.args:
            name = ast.unparse(call.func)
            message = " ".join(_template(call.args[0]).split())
            found.append((room_of(path), name, message))
    return sorted(set(found))


def _template(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return "{}"


# -- wrappers, functions, classes -----------------------------------------------------------------


def wrappers() -> Counter[str]:
    """Count the wrappers on each function of fairseq, torch or Python."""
    found: Counter[str] = Counter()
    for _, node in nodes(*FUNCTIONS):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "replaces":
                found[".".join(ast.unparse(a).strip("'") for a in decorator.args)] += 1
    return found


def long_functions() -> list[str]:
    """Name functions of more than `LONG` lines, outside of kernels."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path, node in nodes(*FUNCTIONS)
        if "kernels" not in path.parts and node.end_lineno - node.lineno >= LONG
    ]


def many_arguments() -> list[str]:
    """Name functions of more than `MANY` arguments, outside of kernels and commands.

    Constructors of layers are left out: their arguments are the options, which the registry reads.
    """
    found = []
    for path, node in nodes(*FUNCTIONS):
        arguments = node.args
        if node.name == "__init__" and "\n@register_head" in path.read_text(encoding="utf-8"):
            continue
        count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        if count > MANY and not {"kernels", "cli"} & set(path.parts):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return found


def crumbs() -> list[str]:
    """Name files below `SMALL` lines that are no registered thing, repair or `__init__`."""
    return [
        str(path.relative_to(PACKAGE))
        for path in modules()
        if path.name not in ("__init__.py", "__main__.py")
        and not str(path.relative_to(PACKAGE)).startswith(REGISTERED)
        and "\n@register_" not in path.read_text(encoding="utf-8")
        and lines_of([path]) < SMALL
    ]


def commands() -> list[str]:
    """Name the visible commands of `highrank`."""
    import click
    import typer.main

    from highrank_plugins.cli import app

    def names(group: Any, prefix: str) -> Iterator[str]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if hasattr(command, "list_commands"):
                yield from names(command, f"{prefix}{name} ")
            elif not command.hidden:
                yield f"{prefix}{name}"

    return list(names(typer.main.get_command(app), ""))


# -- the trace of a loss --------------------------------------------------------------------------


def trace_of_loss(impl: str) -> tuple[int, int, int]:
    """Return files, functions and lines that one fused MoS loss executes, at its second call."""
    import torch

    from highrank_plugins.heads import build_head

    head = build_head("mos", num_classes=50, feature_dim=8, components=3)
    features, target = torch.randn(20, 8, requires_grad=True), torch.arange(20)
    head.nll(features, target, reduction="sum", impl=impl).loss.backward()
    seen: set[tuple[str, int]] = set()

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            seen.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(note)
    head.nll(features, target, reduction="sum", impl=impl).loss.backward()
    sys.setprofile(None)
    spans = set()
    for file in {file for file, _ in seen}:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        functions = [
            (min(x.lineno for x in (n, *n.decorator_list)), n.end_lineno or 0)
            for n in ast.walk(tree)
            if isinstance(n, FUNCTIONS)
        ]
        for line in (line for name, line in seen if name == file):
            around = [span for span in functions if span[0] <= line <= span[1]]
            spans |= {(file, *min(around))} if around else set()
    return len({s[0] for s in spans}), len(spans), sum(last - first + 1 for _, first, last in spans)


def longest_chain() -> int:
    """Count the classes of this package in the longest line of inheritance of a head."""
    from highrank_plugins.heads.base import Head

    def longest(cls: type) -> int:
        own = [c for c in cls.__mro__ if c.__module__.startswith(f"{PACKAGE.name}.")]
        return max(len(own), *map(longest, cls.__subclasses__()), 0)

    return longest(Head)


def unannotated_hooks() -> list[str]:
    """Name functions of hooks and compat of which a parameter or the result has no type."""
    found = []
    for path, node in nodes(*FUNCTIONS):
        given = [
            a for a in (*node.args.args, *node.args.kwonlyargs) if a.arg not in ("self", "cls")
        ]
        typed = node.returns and all(a.annotation for a in given)
        if room_of(path) in ("hooks", "compat") and not typed:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return found


def seconds_of_help() -> float:
    """Return the processor time of `highrank --help`, the least of five."""
    command, took = [sys.executable, "-m", "highrank_plugins.cli", "--help"], []
    for _ in range(5):
        before = os.times()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        took.append(sum(os.times()[2:4]) - sum(before[2:4]))
    return min(took)


def main() -> None:
    if "--refusals" in sys.argv:
        for row in refusals():
            print(*row, sep="\t")
        return
    rooms, found = lines_by_room(), wrappers()
    total = sum(rooms.values())
    print("room, lines")
    for room, count in sorted(rooms.items(), key=lambda item: -item[1]):
        print(f"  {room:12} {count:6,}  {count / total:5.1%}")
    tests = lines_of(sorted((ROOT / "tests").rglob("*.py")))
    print(f"lines of the product; files: {total:,}; {len(modules())}")
    print(f"share of the largest room: {max(rooms.values()) / total:.1%}")
    print(f"lines of the tests: {tests:,}")
    print(f"files under {SMALL} lines that are no registered thing or repair: {len(crumbs())}")
    print(f"wrappers; functions; most on one: {sum(found.values())}; {len(found)}; "
          f"{max(found.values(), default=0)}")  # fmt: skip
    for impl in ("fused", "cpp"):
        print(f"files, functions, lines of one MoS loss, {impl}: {trace_of_loss(impl)}")
    print(f"functions above {LONG} lines: {len(long_functions())}")
    print(f"functions with more than {MANY} arguments: {len(many_arguments())}")
    print(f"classes in the longest chain of inheritance of a head: {longest_chain()}")
    print(f"hooks without annotations: {len(unannotated_hooks())}")
    print(f"visible commands: {len(commands())}")
    print(f"processor time of `highrank --help`: {seconds_of_help():.2f} s")
    print(f"refusals: {len(refusals())}")


if __name__ == "__main__":
    main()
