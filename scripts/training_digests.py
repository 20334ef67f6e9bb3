"""Print a digest of the parameters and optimizer state after ten updates of every kind of training.

    PYTHONPATH=TREE .venv/bin/python scripts/training_digests.py

trains each architecture token on each trunk, and each loss implementation, with the package in TREE
(default: the installed one) on the text of tests/text/tiny. Two revisions that print the same lines
on one machine compute the same numbers, bit for bit: scripts/compare_revisions.sh compares them.
"""

import hashlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
TEXT = ROOT / "tests" / "text" / "tiny"
UPDATES = 10
TRAIN, PREPROCESS = "fairseq_cli.train", "fairseq_cli.preprocess"
COMMON = f"""--num-workers 0 --no-progress-bar --no-epoch-checkpoints --seed 3
    --required-batch-size-multiple 1 --max-update {UPDATES} --disable-validation""".split()
ADAM = "--optimizer adam --lr 0.005 --max-tokens 500 --dropout 0.1".split()
TRANSLATION = [*COMMON, *ADAM, *"--source-lang en --target-lang de --label-smoothing 0.1".split()]
TRANSFORMER = """--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 1
    --encoder-attention-heads 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64
    --decoder-layers 1 --decoder-attention-heads 2""".split()
TRANSFORMER_LM = """--decoder-embed-dim 32 --decoder-input-dim 32 --decoder-output-dim 32
    --decoder-ffn-embed-dim 64 --decoder-layers 1 --decoder-attention-heads 2""".split()
LSTM = """--encoder-embed-dim 32 --encoder-hidden-size 24 --decoder-embed-dim 32
    --decoder-hidden-size 24 --decoder-out-embed-dim 32""".split()
AWD_LSTM = """--decoder-embed-dim 32 --decoder-hidden-size 24 --decoder-last-hidden-size 32
    --decoder-layers 2 --dropout 0.2 --wdrop 0.2""".split()
STREAMS = """--task bptt_language_modeling --bptt 8 --batch-size 4 --optimizer nt_asgd --lr 2
    --clip-norm 0.25 --criterion bptt_cross_entropy --ar-alpha 2 --tar-beta 1""".split()
SENTENCES = ["--task", "language_modeling", "--tokens-per-sample", "32"]
OUR_LOSS = ["--criterion", "highrank_cross_entropy"]
IMPLEMENTATIONS = ("reference", "chunked", "fused", "cpp")
FEW_KNOTS = ["--head-plif-knots", "500"]  # 1e5 knots are slow for a model of this size

LOW_RANK = ["--head-low-rank-rank", "8"]  # below the widths of these models

FORKS = multiprocessing.get_context("forkserver")


def trainings() -> Iterator[tuple[str, str, list[str]]]:
    """Yield a name, the data that it takes, and the options of each training run."""
    from highrank_plugins.heads.vocabulary import VOCABULARY
    from highrank_plugins.models.archs import tokens

    matrices = VOCABULARY.names()
    for token in sorted(tokens()):
        untied = token in matrices and not VOCABULARY.find(token).may_be_tied
        knots = FEW_KNOTS if "plif" in token else LOW_RANK if "low_rank" in token else []
        for arch, data, options in (
            (f"transformer_{token}_tiny", "mt", [*TRANSLATION, *TRANSFORMER, *OUR_LOSS]),
            (f"lstm_{token}", "mt", [*TRANSLATION, *LSTM, *OUR_LOSS]),
            (
                f"transformer_lm_{token}", "lm",
                [*COMMON, *ADAM, *TRANSFORMER_LM, *SENTENCES, *OUR_LOSS],
            ),
            (
                f"awd_lstm_lm_{token}", "lm",
                [*COMMON, *AWD_LSTM, *STREAMS, *["--separate-embeddings"] * untied],
            ),
        ):  # fmt: skip
            yield arch, data, ["--arch", arch, *options, *knots]
        arch = f"transformer_{token}_tiny"
        for loss in IMPLEMENTATIONS:
            more = ["--head-loss", loss, *knots]
            options = [*TRANSLATION, *TRANSFORMER, *OUR_LOSS, *more]
            yield f"{arch} --head-loss {loss}", "mt", ["--arch", arch, *options]


def run(module: str, words: list[str]) -> None:
    """Run a command of fairseq in a separate process."""
    child = FORKS.Process(target=_run, args=(module, words))
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(f"{' '.join(words)}: exit code {child.exitcode}")


def _run(module: str, words: list[str]) -> None:
    import importlib

    log = os.open(os.environ["DIGEST_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    sys.argv = words
    importlib.import_module(module).cli_main()


def preprocess(folder: Path, name: str, options: list[str], suffix: str = "") -> None:
    """Binarise the text into FOLDER/NAME."""
    parts = [w for s in ("train", "valid") for w in (f"--{s}pref", f"{TEXT / s}{suffix}")]
    words = ["fairseq-preprocess", *parts, *options, "--destdir", str(folder / name)]
    run(PREPROCESS, words)


def digest(checkpoint: Path) -> str:
    """Return a hash of all tensors and numbers of the model and of the optimizer."""
    import torch

    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    hashed = hashlib.sha256()
    parts = {"model": state["model"], "optimizer": state["last_optimizer_state"]}
    for path, value in sorted(_leaves(parts), key=lambda item: item[0]):
        hashed.update(path.encode())
        if isinstance(value, torch.Tensor):
            hashed.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            hashed.update(repr(value).encode())
    return hashed.hexdigest()[:16]


def _leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{path}/{index}")
    else:
        yield path, tree


def main() -> None:
    os.environ["LOGLEVEL"] = "ERROR"  # hides fairseq's log, which goes to standard output
    import fairseq_cli.train  # noqa: F401  (registers what `tokens` reads)

    import highrank_plugins

    highrank_plugins.register()
    user_dir = Path(highrank_plugins.__file__).parent
    os.environ["OMP_NUM_THREADS"] = "1"
    FORKS.set_forkserver_preload(
        ["fairseq_cli.train", "fairseq_cli.preprocess", "highrank_plugins"]
    )
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)  # the fork server would import packages from the current folder
        os.environ["DIGEST_LOG"] = str(folder / "log")
        preprocess(folder, "mt", ["--source-lang", "en", "--target-lang", "de"])
        preprocess(folder, "lm", ["--only-source"], ".de")
        for index, (title, data, options) in enumerate(trainings()):
            save = folder / str(index)
            words = ["fairseq-train", str(folder / data), "--save-dir", str(save), *options]
            run(TRAIN, [*words, "--user-dir", str(user_dir)])
            print(f"{digest(save / 'checkpoint_last.pt')}  {title}", flush=True)


if __name__ == "__main__":
    main()
