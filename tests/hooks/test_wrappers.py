"""Each function of fairseq that is replaced: by what, in which order and why; none has two."""

import subprocess
import sys
from pathlib import Path

from fairseq.trainer import Trainer
from fairseq_cli import train

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
