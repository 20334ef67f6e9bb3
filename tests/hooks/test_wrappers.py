"""Each function of fairseq that is replaced: by what, in which order and why; none has two."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.trainer import Trainer
from fairseq_cli import train

from highrank_plugins import compat, hooks
from highrank_plugins.hooks.trainer import HighrankTrainer

# function and wrapper; fairseq_cli.train.Trainer is replaced, too
WRAPPERS = Path(__file__).with_name("wrappers.tsv").read_text().splitlines()
PRINT = """
import sys
import fairseq_cli.train
hidden = sys.modules.pop("fairseq")  # otherwise the package registers itself
import highrank_plugins
from highrank_plugins.common import patching
sys.modules["fairseq"] = hidden
install, found = patching.replaces, []

def noting(owner, name):
    home = owner.__name__.rpartition(".")[2]
    def decorate(new):
        found.append(f"{home}.{name}\\t{new.__module__.partition('.')[2]}.{new.__name__}")
        return install(owner, name)(new)
    return decorate

patching.replaces = noting
exec(sys.argv[1])
highrank_plugins.register()
print(*found, sep="\\n")
"""


def printed(*words: str) -> list[str]:
    """Return the lines that a program prints; `PRINT` prints the wrappers in their order."""
    command = [sys.executable, "-c", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_list_is_what_register_does_in_any_order_of_imports():
    assert printed(PRINT, "") == WRAPPERS
    first = "from highrank_plugins.hooks import text, training_loop, metrics"
    assert sorted(printed(PRINT, first)) == sorted(WRAPPERS)
    functions = [line.partition("\t")[0] for line in WRAPPERS]
    assert len(set(functions)) == len(functions)


def test_fairseq_builds_our_trainer():
    assert train.Trainer is HighrankTrainer
    own = {name for name in vars(HighrankTrainer) if callable(vars(HighrankTrainer)[name])}
    assert {"train_step", "load_checkpoint", "consolidate_optimizer"} <= own & set(vars(Trainer))
    # heads may be imported before fairseq
    code = "import highrank_plugins.heads; from fairseq_cli import train; print(train.Trainer)"
    assert "HighrankTrainer" in printed(code)[0]


NAMES = [
    f"{package.__name__}.{module.name}"
    for package in (compat, hooks)
    for module in pkgutil.iter_modules(package.__path__)
]
ROOT = Path(__file__).parents[2]
PARTS = r"What\s+breaks:.*Why:.*What\s+we\s+do:.*Delete\s+when:"


@pytest.mark.parametrize("name", NAMES)
def test_every_repair_says_why_it_is_there_and_stands_alone(name):
    """A repair of compat has a docstring; one of hooks a paragraph in that of its file."""
    source = ast.parse(Path(ROOT, *name.split(".")).with_suffix(".py").read_text())
    story = ast.get_docstring(source)
    if not name.startswith(compat.__name__):
        repairs = [text for text in story.split("\n\n") if "Why:" in text]
        assert repairs and all(re.search(PARTS, text, re.DOTALL) for text in repairs)
        return
    assert re.search(PARTS, story, re.DOTALL)
    for node in ast.walk(source):  # each can be deleted alone, when fairseq no longer needs it
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [getattr(node, "module", ""), *(alias.name for alias in node.names)]
            assert not [n for n in names if "compat" in n or "hooks" in n], name
            assert not getattr(node, "level", 0), f"{name}: a relative import"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".trainer")])
def test_a_second_import_does_not_wrap_again(name, monkeypatch):
    module = importlib.import_module(name)
    before = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    for hook in (v for v in before if v.__name__ == "excepthook"):
        monkeypatch.setattr(sys, "excepthook", hook)  # torch has its own for a process group
    importlib.reload(module)
    after = [v for v in vars(module).values() if getattr(v, "highrank_patch", False)]
    assert before == after
