"""Provide `highrank list`: what exists; and `new`: a recipe and a study of your own text."""

import inspect
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import highrank_plugins
from highrank_plugins.cli.options import UserDir, echo_markdown
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import write_text
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.formatting import table
from highrank_plugins.data.own_files import check_languages, find_parts
from highrank_plugins.studies.definition import RECIPES


def listings(
    what: Annotated[Literal["archs", "heads", "recipes"], "archs, heads or recipes."],
    user_dir: UserDir = None,
) -> None:
    """Print all architectures, layers or recipes.

    Example: highrank list archs

    Architectures are names alone. Layers have structures, pointwise functions and options, recipes
    their configurations, in Markdown tables, which a terminal draws.
    """
    if what == "archs":
        highrank_plugins.register()
        # imported by name, because mypy does not check the dataclasses that fairseq reads
        typer.echo("\n".join(import_module("highrank_plugins.models.archs").names()))
    else:
        {"heads": _heads, "recipes": _recipes}[what]()


def _heads() -> None:
    from highrank_plugins.heads.base import HEADS
    from highrank_plugins.heads.pointwise import POINTWISE
    from highrank_plugins.heads.vocabulary import VOCABULARY
    from highrank_plugins.losses import IMPLEMENTATIONS
    from highrank_plugins.losses.nll import FUSED

    plain = [impl for impl in IMPLEMENTATIONS if impl not in FUSED]
    structures = list(_rows(HEADS))
    for name, row in zip(HEADS.names(), structures, strict=True):
        row.append(", ".join(IMPLEMENTATIONS if HEADS.find(name).fused else plain))
    echo_markdown(table(("structure", "what it is", "options", "losses"), structures))
    for kind, registry in (("pointwise function", POINTWISE), ("vocabulary matrix", VOCABULARY)):
        echo_markdown(table((kind, "what it is", "options"), list(_rows(registry))))
    typer.echo(
        "In Python: build_head(STRUCTURE, pointwise=FUNCTION, vocabulary=MATRIX, …)\n"
        "In fairseq: --head STRUCTURE --head-OPTION VALUE\n"
        "            --head-pointwise FUNCTION --head-FUNCTION-OPTION VALUE\n"
        "            --head-vocabulary MATRIX --head-MATRIX-OPTION VALUE"
    )


def _rows(registry: Any) -> Iterator[list[str]]:
    """Yield the row of each name: name, first line of the docstring, options with defaults."""
    # where the default is None, the layer chooses a value
    words = {inspect.Parameter.empty: "(required)", None: "", True: "true", False: "false"}
    for name in registry.names():
        what = (inspect.getdoc(registry.find(name)) or "").partition("\n")[0]
        shown = [
            f"{option} {words[v] if v is None or type(v) in (bool, type) else v}".rstrip()
            for option, v in registry.options(name).items()
        ]
        yield [f"`{name}`", what, ", ".join(shown)]


def _recipes() -> None:
    scripts = sorted(RECIPES.glob("*/run.sh"))
    if not scripts:
        raise ValueError(f"{RECIPES}: recipes come with a clone of the repository")
    rows = []
    for script in scripts:
        _, header, *_ = script.read_text(encoding="utf-8").splitlines()
        subject, confs = header.removeprefix("#").strip(), _confs(script.parent)
        rows.append([f"`recipes/{script.parent.name}/run.sh`", subject, confs])
    echo_markdown(table(["recipe", "trains", "configurations (--conf)"], rows), nl=False)


def _confs(recipe: Path) -> str:
    """Return the names for --conf, without configurations that only serve as a base."""
    conf = recipe / "conf"
    folders: dict[str, list[str]] = {}
    for path in sorted(conf.rglob("*.yaml")):
        if not path.stem.startswith("base"):
            folders.setdefault(str(path.parent.relative_to(conf)), []).append(path.stem)
    return " ".join(
        f"{'' if folder == '.' else f'{folder}/'}{{{','.join(names)}}}"
        for folder, names in folders.items()
    )


_LAYERS = ("softmax", "mixtape", "mos", "sigsoftmax")


def new(
    folder: Annotated[Path, "New folder."],
    translation: bool = option(False, "Compare translators; needs --source and --target."),
    language_model: bool = option(False, "Compare language models."),
    source: str | None = option(None, "Language to translate from, such as cs."),
    target: str | None = option(None, "Language to translate to, such as en."),
    # not `data`, which has to be a file or a folder
    text: Path | None = option(None, "Your text, to copy to FOLDER/text.", {"words": "--data"}),
) -> None:
    """Make a folder to compare layers on your own text.

    Example: highrank new mine --translation --source cs --target en

    It has a recipe with its configurations, a study of four layers × three seeds, and a README.
    """
    if translation == language_model:
        raise ValueError("give one of --translation and --language-model")
    if translation != bool(source and target) or (language_model and (source or target)):
        raise ValueError("--translation needs --source and --target, which only it has")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", folder.name):
        raise ValueError(f"{folder}: runs are named after it; use letters, digits and ._-")
    endings = (source, target) if source and target else ("txt",)
    check_languages(endings)
    parts = find_parts(text, endings) if text else {}
    recipe = RECIPES / ("own_translation" if translation else "own_language_model")
    if not recipe.is_dir():
        raise ValueError(f"{recipe}: recipes come with a clone of the repository")
    with new_folder(folder) as part:
        shutil.copytree(recipe / "conf", part / "conf")
        for sizes in recipe.glob("sizes*.yaml"):
            shutil.copy(sizes, part)
        write_text(part / "run.sh", _script(recipe, source, target))
        (part / "text").mkdir()
        for path in chain(*parts.values()):
            is_named = source or path.name.removesuffix(".gz").endswith(".txt")
            name = path.name if is_named else f"train.txt{'.gz' * (path.suffix == '.gz')}"
            shutil.copy(path, part / "text" / name)
        write_text(part / "study.yaml", _study(bool(source)))
        write_text(part / "README.md", _readme(folder, source, target, is_there=bool(parts)))
    typer.echo(f"{folder}: see {folder / 'README.md'}")


def _script(recipe: Path, source: str | None, target: str | None) -> str:
    script = (recipe / "run.sh").read_text(encoding="utf-8")
    script = script.replace('"$(dirname -- "${BASH_SOURCE[0]}")/../lib', f'"{RECIPES / "lib"}')
    for name, language in (("source", source), ("target", target)):
        script = re.sub(rf"(?m)^{name}= +#", f"{name}={language}  #", script)
    return script


def _study(translates: bool) -> str:
    metric, trunk = ("sacrebleu", "") if translates else ("test_perplexity", "awd_lstm/")
    members = "".join(f"  {layer}: {{conf: {trunk}{layer}}}\n" for layer in _LAYERS)
    return f"""\
# Four layers × three seeds on the text in `text/`. docs/howto/studies.md explains the keys.
recipe: .
options: {{data: text, measured_updates: 0}}
seeds: [1, 2, 3]
metric: {metric}
baseline: softmax
members:
{members}"""


def _readme(folder: Path, source: str | None, target: str | None, *, is_there: bool) -> str:
    files = f"`train.{source}` and `train.{target}`" if source else "`train.txt`"
    done = "It is there." if is_there else "Put it there first."
    run, study = (shlex.quote(str(folder.resolve() / name)) for name in ("run.sh", "study.yaml"))
    root = Path(highrank_plugins.__file__).resolve().parents[1]
    return f"""\
# {folder.name}

Output layers compared on a text of your own.

1. The text is in `text/`: {files}, and the same for `valid` and `test`; or one text alone, which is
   split. {done}
2. `bash {run}` trains the softmax. It says the size that it chose and how long it takes.
   `--conf` chooses another layer of `conf/`, `--help` shows all options.
3. `highrank study {study}` trains all layers with all seeds.
   It ends with a table and the sentence that may be claimed. It resumes.
   `--dry-run` shows what it will do. For an answer within an hour, keep two layers and two seeds
   in `study.yaml`.

`sizes*.yaml` has the sizes, `conf/` the layers: change them as you like. Copy a file in
`conf/` for a layer of your own ({root / "docs/howto/own_layer.md"}), and add it to `study.yaml`.
"""
