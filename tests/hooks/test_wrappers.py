"""Every function of fairseq that is replaced, by what, and in which order: no function has two."""

import subprocess
import sys
from pathlib import Path

from fairseq.trainer import Trainer
from fairseq_cli import train

import highrank_plugins
from highrank_plugins.hooks.trainer import HighrankTrainer
from tests.compat.conftest import translation_options

# function and wrapper; fairseq_cli.train.Trainer and MegatronTrainer are replaced, too
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


def registered(first: str = "") -> list[str]:
    """Return the wrappers in the order in which a process installs them."""
    command = [sys.executable, "-c", PRINT, first]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_list_is_what_register_does_in_any_order_of_imports():
    assert registered() == WRAPPERS
    first = "from highrank_plugins.hooks import text, training_loop, metrics"
    assert sorted(registered(first)) == sorted(WRAPPERS)
    functions = [line.partition("\t")[0] for line in WRAPPERS]
    assert len(set(functions)) == len(functions)


def test_fairseq_builds_our_trainer_in_both_cases():
    assert train.Trainer is HighrankTrainer
    parallel = train.MegatronTrainer
    stock = [cls.__name__ for cls in parallel.__mro__]
    assert stock[1:4] == ["HighrankTrainer", "MegatronTrainer", "Trainer"]
    own = {name for name in vars(HighrankTrainer) if callable(vars(HighrankTrainer)[name])}
    assert {"train_step", "load_checkpoint", "consolidate_optimizer"} <= own & set(vars(Trainer))


def test_heads_may_be_imported_before_fairseq(data, tmp_path):
    program = "import highrank_plugins.heads; from fairseq_cli.train import cli_main; cli_main()"
    words = translation_options(**{"--arch": "transformer_mos_tiny", "--max-update": 1})
    folder = Path(highrank_plugins.__file__).parent
    more = ["--save-dir", tmp_path, "--cpu", "--optimizer", "adam", "--user-dir", folder]
    command = [sys.executable, "-c", program, data, *words, *more]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "checkpoint_last.pt").exists() and (tmp_path / "metrics.jsonl").exists()
