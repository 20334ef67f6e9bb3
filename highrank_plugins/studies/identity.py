"""Compute a member's key from everything that its numbers depend on, and nothing else."""

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import highrank_plugins
from highrank_plugins.studies.definition import Study, script_options
from highrank_plugins.training.configuration import Configuration

# folders and modules that change no number of a run; those of results/ only read records
_APART = {
    "benchmarks",
    "cli",
    "reports",
    "results/comparison.py",
    "results/provenance_notes.py",
    "results/published.py",
    "results/results_table.py",
    "results/systems.py",
    "results/verdicts.py",
    "studies",
}
# a number that YAML reads as text, since it has no decimal point
_EXPONENT = re.compile(r"[+-]?\d+[eE][+-]?\d+")
_PACKAGES = ("torch", "ve-fairseq", "numpy", "sacrebleu", "sentencepiece")


def member_key(study: Study, settings: Configuration) -> str:
    """Return a digest of configuration, code, versions and data of a member.

    Equal keys give equal numbers on one machine. Comments, docstrings and the layout of the code
    do not count, nor do names of members, nor whether a number is written 1e-3 or 0.001.

    Args:
        settings: the member's, with its seed.
    """
    defaults = script_options(study.recipe)
    files = {
        name: Path(value)
        for name, value in study.options.items()
        if not defaults.get(name) and Path(value).exists()
    }
    words = {name: value for name, value in study.options.items() if name not in files}
    user_dir = settings.train.get("user_dir")
    content = {
        "recipe": study.recipe.name,
        "script": script_digest(study.recipe),
        "corpus": {file.name: _bytes_digest(file) for file in study.recipe.glob("corpus*.yaml")},
        "configuration": _read_numbers(settings.blocks()),
        "options": words,
        "threads": study.settings.threads,  # they change the order of sums
        "data": {name: files_digest(path) for name, path in sorted(files.items())},
        "code": code_digest(),
        "user_dir": code_digest(Path(str(user_dir))) if user_dir else "",
        "versions": {name: version(name) for name in _PACKAGES},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _read_numbers(value: Any) -> Any:
    """Return nested mappings with every number in one form."""
    if isinstance(value, dict):
        return {name: _read_numbers(entry) for name, entry in value.items()}
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def code_digest(package: Path = Path(highrank_plugins.__file__).parent) -> str:
    """Return a digest of the code that numbers depend on."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        place = path.relative_to(package)
        if {place.parts[0], place.as_posix()} & _APART:
            continue
        if "__pycache__" in place.parts or not path.is_file():
            continue
        if path.suffix == ".py":
            digest.update(f"{place}\n{_syntax(path)}\n".encode())
        elif path.suffix in (".cpp", ".hpp"):
            digest.update(f"{place}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _syntax(path: Path) -> str:
    """Return a module's syntax tree without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            del body[0]
    return ast.dump(tree)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def script_digest(recipe: Path) -> str:
    """Return a digest of a recipe's script and of its library, without comments."""
    digest = hashlib.sha256()
    for path in [recipe / "run.sh", *sorted((recipe.parent / "lib").glob("*.sh"))]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                digest.update(f"{line}\n".encode())
    return digest.hexdigest()


@cache
def files_digest(path: Path) -> str:
    """Return a digest of a file, or of names and contents of all files in a folder."""
    if path.is_file():
        return _bytes_digest(path)
    digest = hashlib.sha256()
    for file in _files(path):
        digest.update(f"{file.relative_to(path)} {_bytes_digest(file)}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def _bytes_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
