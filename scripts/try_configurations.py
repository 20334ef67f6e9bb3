"""Train every configuration of every recipe for 50 updates at a reduced width.

    python scripts/try_configurations.py --text DIR

DIR has {train,valid}.{en,de}, such as Multi30k; language models read the English side. The results
are written to docs/configurations.md. All options are the configuration's except those in
`REDUCED`. A loss that does not fall, or a training run that fails, makes the exit code 1.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from highrank_plugins.common.formatting import table
from highrank_plugins.training import configuration
from highrank_plugins.training.command_line import user_dir, words_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configurations.md"
UPDATES, FIRST, LAST = 50, 5, 10
LINES = {"train": 3000, "valid": 50}
WORDS = 1000
# grids of `python -m recipes.synthetic spamlang`, which takes no options of fairseq-train
LEFT_OUT = ("synthetic/full", "synthetic/small")
RUN = {
    "max_update": UPDATES, "max_epoch": 0, "no_save": True,
    "log_interval": 1, "log_format": "json", "num_workers": 0, "save_interval_updates": 0,
    "keep_last_epochs": -1, "keep_interval_updates": -1, "distributed_world_size": 1, "cpu": True,
}  # fmt: skip
_SIDES = [f"{side}coder" for side in ("en", "de")]
_TRANSLATOR = {
    "source_lang": "en", "target_lang": "de", "max_tokens": 300,
    **{f"{side}_{name}_dim": size for side in _SIDES
       for name, size in (("embed", 32), ("ffn_embed", 64))},
    **{f"{side}_layers": 2 for side in _SIDES},
    **{f"{side}_attention_heads": 2 for side in _SIDES},
}  # fmt: skip
# prefix of an architecture's name → smaller options
REDUCED: dict[str, dict[str, Any]] = {
    "transformer_lm": {
        "decoder_embed_dim": 32, "decoder_input_dim": 32, "decoder_output_dim": 32,
        "decoder_ffn_embed_dim": 64, "decoder_layers": 2, "decoder_attention_heads": 2,
        "max_tokens": 300, "tokens_per_sample": 50,
    },
    "transformer": _TRANSLATOR,
    "awd_lstm": {
        "decoder_embed_dim": 32, "decoder_hidden_size": 32, "decoder_last_hidden_size": 32,
        "batch_size": 4, "bptt": 20, "eval_streams": 1,
    },
    "lstm": {
        "source_lang": "en", "target_lang": "de", "batch_size": 16, "encoder_embed_dim": 32,
        "encoder_hidden_size": 32, "decoder_embed_dim": 32, "decoder_hidden_size": 32,
        "decoder_out_embed_dim": 32,
    },
}  # fmt: skip
IF_PRESENT: dict[str, Any] = {
    "noam_dim": 32, "warmup_updates": 10, "head_plif_knots": 1000, "patience": -1,
}  # fmt: skip
_ENTRY = re.compile(r".*\| train_inner \| (\{.*\})")
FORKS = multiprocessing.get_context("forkserver")


class Trial(NamedTuple):
    """Hold the mean loss of the first and of the last updates, and the error of a failed run."""

    first: float
    last: float
    error: str = ""

    @property
    def falls(self) -> bool:
        """Whether the training run ended with a lower loss."""
        return not self.error and self.last < self.first


def configurations() -> list[Path]:
    """Return the files that can be trained, below recipes: all but bases and `LEFT_OUT`."""
    found = (ROOT / "recipes").glob("*/conf/**/*.yaml")
    trained = (path for path in found if "/".join(name_of(path)) not in LEFT_OUT)
    return sorted(path for path in trained if not path.name.startswith("base"))


def name_of(path: Path) -> tuple[str, str]:
    """Return recipe and --conf of a file."""
    recipe, _, *rest = path.relative_to(ROOT / "recipes").with_suffix("").parts
    return recipe, "/".join(rest)


def options_of(path: Path) -> dict[str, Any]:
    """Return the reduced options of a configuration's training."""
    train = configuration.load(path).train
    family = next(family for family in REDUCED if train["arch"].startswith(family))
    present = {name: value for name, value in IF_PRESENT.items() if name in train}
    return {**train, **REDUCED[family], **present, **RUN}


def prepare(text: Path, folder: Path) -> None:
    """Write FOLDER/mt and FOLDER/lm, binarised from the first lines of the text."""
    for split, count in LINES.items():
        for language in ("en", "de"):
            with (text / f"{split}.{language}").open(encoding="utf-8") as lines:
                kept = [line for line, _ in zip(lines, range(count), strict=False)]
            (folder / f"{split}.{language}").write_text("".join(kept), encoding="utf-8")
    pairs = [word for split in LINES for word in (f"--{split}pref", str(folder / split))]
    words = [*pairs, "--source-lang", "en", "--target-lang", "de", "--joined-dictionary"]
    words += ["--nwordssrc", str(WORDS)]
    _train("preprocess", [*words, "--destdir", str(folder / "mt")], folder)
    texts = [word for split in LINES for word in (f"--{split}pref", str(folder / f"{split}.en"))]
    words = ["--only-source", *texts, "--nwordssrc", str(WORDS)]
    _train("preprocess", [*words, "--destdir", str(folder / "lm")], folder)


def try_configuration(path: Path, folder: Path) -> Trial:
    """Train on the text that `prepare` has written."""
    options = options_of(path)
    data = "lm" if "_lm" in options["arch"] else "mt"
    words = [str(folder / data), *words_of(options), *user_dir(options)]
    code, output = _train("train", [*words, "--save-dir", str(folder / "save")], folder)
    entries = filter(None, map(_ENTRY.fullmatch, output.splitlines()))
    losses = [float(json.loads(entry[1])["loss"]) for entry in entries]
    if code or len(losses) < UPDATES:
        reason = (output.strip().splitlines() or ["no output"])[-1]
        return Trial(0, 0, f"exit code {code} after {len(losses)} updates: {reason}")
    return Trial(sum(losses[:FIRST]) / FIRST, sum(losses[-LAST:]) / LAST)


def _train(command: str, words: Sequence[str], folder: Path) -> tuple[int, str]:
    log = folder / "log"
    log.unlink(missing_ok=True)
    child = FORKS.Process(target=_run, args=(f"fairseq_cli.{command}", list(words), str(log)))
    child.start()
    child.join()
    return child.exitcode or 0, log.read_text(encoding="utf-8")


def _run(module: str, words: list[str], log: str) -> None:
    import importlib

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["fairseq", *words]
    importlib.import_module(module).cli_main()


def row_of(path: Path, trial: Trial) -> list[str]:
    """Return the cells of a configuration."""
    losses = ("–", "–") if trial.error else (f"{trial.first:.2f}", f"{trial.last:.2f}")
    arch = configuration.load(path).train["arch"]
    verdict = trial.error or ("falls" if trial.falls else "does not fall")
    return [*name_of(path), f"`{arch}`", *losses, verdict]


def page(rows: Sequence[list[str]]) -> str:
    """Return the page in Markdown."""
    found = table(["recipe", "`--conf`", "`--arch`", "first", "last", "loss"], rows)
    return f"""# Every configuration, tried

This page is written by `python scripts/try_configurations.py --text DIR`. Each configuration of
each recipe trained for {UPDATES} updates on {LINES["train"]:,} lines of Multi30k with {WORDS:,}
words, on one core. Options are the configuration's, except that widths are 32, batches are small
and the warm-up has 10 updates. This shows that a configuration trains, not how well. *First* is the
mean training loss of the first {FIRST} updates, *last* that of the last {LAST}, in bits per token.

The table leaves out {" and ".join(f"`{name}`" for name in LEFT_OUT)}. They are grids of
`python -m recipes.synthetic spamlang`, which trains layers on generated symbols, without a text
and without fairseq-train. It also leaves out the files
`base*.yaml`, which other files extend.

{found}"""


def start() -> None:
    """Import fairseq into the process that forks the training runs."""
    os.environ["OMP_NUM_THREADS"] = "1"
    modules = ["fairseq_cli.train", "fairseq_cli.preprocess", "highrank_plugins", "torch._dynamo"]
    FORKS.set_forkserver_preload(modules)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--text", type=Path, required=True, help="folder with {train,valid}.{en,de}"
    )
    given = parser.parse_args()
    start()
    rows, all_fall = [], True
    with TemporaryDirectory() as folder:
        prepare(given.text.absolute(), Path(folder))
        for path in configurations():
            trial = try_configuration(path, Path(folder))
            all_fall &= trial.falls
            rows.append(row_of(path, trial))
            print(path, trial, flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")
    sys.exit(not all_fall)


if __name__ == "__main__":
    main()
