"""Write prose of the documentation in the pinned packages of .venv, one sentence a line.

Docstrings are read without importing anything. A sentence is kept if it begins with a capital
letter, ends with a full stop, and has 5 to 40 words; repeated ones once. Words are in lower case.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from highrank_plugins.common.files import write_text

PACKAGES = ("networkx", "numpy")
SHA256 = "144d9c86428cef5c746f6635af4b7fe09e9dd0522149725105f55b8a70367bdf"
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*|[0-9]+|[.,;:!?()]")
_PROSE = re.compile(r"[A-Z][A-Za-z ,;:'()-]+\.")


def main() -> None:
    text = "".join(f"{line}\n" for line in dict.fromkeys(sentences()))
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != SHA256:
        print(
            f"error: .venv has other packages than requirements/pinned.txt (sha256 {found}): run "
            "bash scripts/setup.sh, or name a text of your own with --data",
            file=sys.stderr,
        )
        sys.exit(2)
    write_text(Path(sys.argv[1]), text)  # whole: the recipe takes a file that is there


def sentences(packages: Sequence[str] = PACKAGES) -> Iterator[str]:
    """Yield the sentences of all packages, whose files are mixed by a hash of their names."""
    files: dict[str, Path] = {}
    for spec in filter(None, map(find_spec, packages)):
        for folder in map(Path, spec.submodule_search_locations or ()):
            found = [path for path in folder.rglob("*.py") if "tests" not in path.parts]
            files |= {path.relative_to(folder.parent).as_posix(): path for path in found}
    for name in sorted(files, key=lambda name: hashlib.sha256(name.encode()).digest()):
        yield from _of_file(files[name])


def _of_file(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            for paragraph in re.split(r"\n\s*\n", text):
                for sentence in _SENTENCE.split(" ".join(paragraph.split())):
                    words = _WORD.findall(sentence.lower())
                    if _PROSE.fullmatch(sentence) and 5 <= len(words) <= 40:
                        yield " ".join(words)


if __name__ == "__main__":
    main()
