"""Tiny data and training runs, all in one process: a start of fairseq-train costs seconds."""

import random
from argparse import Namespace
from itertools import chain
from pathlib import Path
from shlex import split

import pytest
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from fairseq_cli import eval_lm, generate, preprocess, validate
from fairseq_cli import train as training

import highrank_plugins
from highrank_plugins.common.names import flag

highrank_plugins.register()

WORDS = split("the a cat dog house tree sees eats likes big small red in on under")
SIZES = {"train": 62, "valid": 13, "test": 13}  # not multiples of 8
TRANSFORMER = split(
    "--encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --encoder-attention-heads 1"
)
DECODER = [word.replace("encoder", "decoder") for word in TRANSFORMER]
MODELING = split("--task language_modeling --arch transformer_lm --tokens-per-sample 16")
MODELING += [*DECODER, "--max-tokens", 64]


def config(parser_name: str, *argv):
    """Parse `argv` as the command line tool does."""
    parser = getattr(options, f"get_{parser_name}_parser")()
    args = options.parse_args_and_arch(parser, [str(word) for word in argv])
    return convert_namespace_to_omegaconf(args)


def run_training(data: Path, save_dir: Path, *argv) -> dict:
    """Train on one CPU; return the state in `checkpoint_last.pt`."""
    # fairseq keeps the best score on the function, from one training run to the next
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    common = split("--cpu --optimizer adam --lr 1e-2 --num-workers 0 --no-epoch-checkpoints")
    training.main(config("training", data, "--save-dir", save_dir, *common, *argv))
    return checkpoint_utils.load_checkpoint_to_cpu(str(save_dir / "checkpoint_last.pt"))


def transformer(**options) -> list[str]:
    """Return words for a Transformer of a few hundred parameters; None leaves an option out."""
    chosen = {"max_tokens": 60, "max_update": 2, "dropout": 0} | options
    pairs = [(flag(name), str(value)) for name, value in chosen.items() if value is not None]
    return ["--arch", "transformer", *TRANSFORMER, *DECODER, *chain.from_iterable(pairs)]


def train(data: Path, save_dir: Path, *words, **options) -> dict:
    """Train a `transformer`; words win against options."""
    return run_training(data, save_dir, *transformer(**options), *words)


def evaluate(command: str, data: Path, path: Path, *words, **overrides):
    """Run fairseq-generate, -eval-lm or -validate on one CPU."""
    line = [data, "--path", path, "--cpu", "--num-workers", 0, *words]
    if command == "generate":
        return generate.main(config("generation", *line))
    if command == "eval-lm":
        return eval_lm.main(config("eval_lm", *line))
    cfg = config("validation", *line, "--task", "translation", "--max-tokens", 60)
    return validate.main(cfg, override_args=Namespace(data=str(data), **overrides))


def updates(state: dict) -> int:
    """Return the updates of a checkpoint."""
    return state["optimizer_history"][-1]["num_updates"]


@pytest.fixture
def stock(monkeypatch):
    """Return `stock(owner, name)`, which restores a function of fairseq for the rest of a test."""

    def restore(owner, name: str) -> None:
        if owner is Trainer:
            monkeypatch.setattr(training.Trainer, name, vars(Trainer)[name])
            return
        own = getattr(owner, name)
        while hasattr(own, "highrank_patch"):
            own = own.__wrapped__
        is_static = isinstance(vars(owner).get(name), staticmethod)
        monkeypatch.setattr(owner, name, staticmethod(own) if is_static else own)

    return restore


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """Binarise a parallel corpus xx-yy; `data / "lm"` is its target side alone."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(1)
    for name, size in SIZES.items():
        lines = [[draw.choice(WORDS) for _ in range(draw.randint(1, 9))] for _ in range(size)]
        (folder / f"{name}.xx").write_text("".join(" ".join(s) + "\n" for s in lines))
        (folder / f"{name}.yy").write_text("".join(" ".join(s[::-1]) + "\n" for s in lines))
    corpora = {"--trainpref": "train", "--validpref": "valid", "--testpref": "test"}
    prefixes = [str(word) for key, name in corpora.items() for word in (key, folder / name)]
    parser = options.get_preprocessing_parser()
    pair = ["-s", "xx", "-t", "yy", "--joined-dictionary", "--destdir", str(folder / "bin")]
    preprocess.main(parser.parse_args(prefixes + pair))
    single = [word if word.startswith("--") else f"{word}.yy" for word in prefixes]
    alone = ["--only-source", "--destdir", str(folder / "bin" / "lm")]
    preprocess.main(parser.parse_args(single + alone))
    return folder / "bin"


@pytest.fixture(scope="session")
def translator(data, tmp_path_factory) -> Path:
    """Return a trained translation checkpoint."""
    save_dir = tmp_path_factory.mktemp("translator")
    train(data, save_dir)
    return save_dir / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def language_model(data, tmp_path_factory) -> Path:
    """Return a trained language model that accepts 16 tokens at most."""
    save_dir = tmp_path_factory.mktemp("language_model")
    run_training(data / "lm", save_dir, *MODELING, "--max-update", 2)
    return save_dir / "checkpoint_last.pt"
