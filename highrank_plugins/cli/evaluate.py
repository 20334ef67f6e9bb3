"""Provide `highrank evaluate …` and `translate`: from a model to translations and scores."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

import highrank_plugins
from highrank_plugins.analysis.scored_text import Tokens
from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import (
    Data,
    UserDir,
    numbers,
    print_or_write,
    refuse_idle,
    require_file,
)
from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.checkpoint_file import read_checkpoint
from highrank_plugins.common.files import write_json, write_text
from highrank_plugins.common.names import Score
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.common.text_lines import decoded, fold, require_unreserved
from highrank_plugins.data.pieces import piece_options
from highrank_plugins.results import perplexity, scoring
from highrank_plugins.training.blocks import AdaptiveSettings, DynamicSettings
from highrank_plugins.training.launch import supervise


def generate(
    command: Annotated[list[str], "After --: fairseq-generate and its options."],
    processes: int = option(1, "Number of processes, on GPUs in turn, else on CPU cores.", ge=1),
    output: Path | None = option(None, "File to write (default, and -: print it)."),
) -> None:
    """Run fairseq-generate on several processes.

    Example: highrank evaluate generate --processes 4 -- fairseq-generate data-bin

    The lines are those of fairseq-generate, sorted by sentence.
    """
    require_file(output)
    print_or_write(b"".join(supervise.generated(command, processes)).decode("utf-8"), output)


class ScoreOptions(BlockOptions):
    """Say which scores are computed, and where they are written."""

    output: Path | None = option(None, "JSON file for values and signatures (default: print them).")
    hypotheses: Path | None = option(None, "File to write the translations to, one per line.")
    tokenise: str | None = option(None, "Add BLEU of Moses' tokens in this language, e.g. de.")
    compound_split: bool = option(False, "Add BLEU of these tokens split at hyphens; German only.")
    against: list[Path] | None = option(
        None, "Translations of another system for a paired test; may be repeated, baseline first."
    )
    test: Literal["bootstrap", "randomisation"] = option("bootstrap", "The paired test.")
    samples: int = option(0, "Resamplings (0: 1,000 of bootstrap, 10,000 of randomisation).", ge=0)
    measures: Path | None = option(None, "Folder with results of highrank measure to add.")
    bleu_tokens: Tokens | None = option(None, "Tokens of sacreBLEU (default: by script).")


def score(
    generated: Annotated[
        Path, "Output of fairseq-generate or fairseq-eval-lm, or one translation per line."
    ],
    reference: Annotated[Path, "Raw references, one per line, or the text that eval-lm scored."],
    options: ScoreOptions,
) -> None:
    """Compute sacreBLEU and chrF, or perplexities of a language model.

    Example: highrank evaluate score generated.txt test.de

    Refuses a file that lacks a translation. With --against, the paired test is printed and written
    to paired.json; it is sacreBLEU's. The perplexities are per piece and per word, with bits per
    byte; only the last two compare models with different pieces. The end of a line counts as a
    piece, a word and a byte.
    """
    if perplexity.is_eval_lm(generated):
        refuse_idle(options, ("output",), "for perplexities")
        return write_or_print(perplexity.of_text(generated, reference), options.output)
    tokenise, output, measures = options.tokenise, options.output, options.measures
    if options.compound_split:
        scoring.check_compounds(tokenise)
    if not options.against and (options.test, options.samples) != ("bootstrap", 0):
        raise ValueError("--test and --samples: change nothing without --against; add it")
    if measures is not None and not measures.is_dir():
        raise ValueError(f"--measures {measures}: no such folder")
    texts = scoring.read_lines(reference)
    lines = scoring.read_hypotheses(generated, len(texts))
    scores = scoring.score(lines, texts, options.bleu_tokens)
    if tokenise is not None:
        split = options.compound_split
        scores |= scoring.tokenised_scores(lines, texts, tokenise, compound_split=split)
    if options.against:
        kind = options.bleu_tokens, options.test, options.samples
        paired = scoring.compare(options.against, generated, lines, texts, *kind)
        if output is not None:
            write_json(output.with_name("paired.json"), paired)
        typer.echo(json.dumps(paired, ensure_ascii=False))
    if measures is not None:
        scores |= perplexity.read_measures(measures, "test")
    if options.hypotheses is not None:
        write_text(options.hypotheses, "".join(f"{line}\n" for line in lines))
    write_or_print(scores, output)


def write_or_print(scores: dict[str, Score], output: Path | None) -> None:
    """Write values and signatures as JSON, or print a line of each without an output."""
    if output is not None:
        said = {name: asdict(score).items() for name, score in scores.items()}
        write_json(output, {name: {k: v for k, v in of if v != ""} for name, of in said.items()})
        return
    for name, found in scores.items():
        typer.echo(f"{name} {found.value} {found.signature}")


LIST = "With --grid: several values, separated by commas."
LAMBDA = {"words": "--lambda", "metavar": "LAMBDA"}

Checkpoint = Annotated[Path, "Checkpoint of --arch awd_lstm_lm_<head>."]


def dynamic_eval(
    checkpoint: Checkpoint,
    data: Data,
    *,
    lr: str = option(..., f"Step size η. {LIST}"),
    eps: str = option(..., f"ε, added to the statistic. {LIST}"),
    lamb: str = option(..., f"Pull λ towards the trained weights. {LIST}", LAMBDA),
    dynamic: DynamicSettings,
    settings: AdaptiveSettings,
    user_dir: UserDir = None,
) -> None:
    """Score a text with a model that learns from it.

    Example: highrank evaluate dynamic checkpoint_best.pt data-bin --lr 5e-5
    --eps 2e-5 --lambda 0.002

    This is the dynamic evaluation of Krause et al. (2018). The model scores each segment first and
    then learns from it, without any dropout. The recurrent state is carried along, and every token
    counts once.

    Useful values depend on --statistic and --normalise. For rms and mean, Krause's code begins with
    lr 5e-5, eps 2e-5, lambda 0.002. For sum and sum, the MoS of Yang et al. (2018) had lr 0.002,
    eps 0.001, lambda 0.075 on Penn Treebank and lr 0.002, eps 0.002, lambda 0.02 on WikiText-2.
    More in docs/howto/adaptive_evaluation.md.
    """
    from highrank_plugins.inference import adaptive_evaluation as adaptive

    require_file(settings.output)
    given = {"lr": lr, "eps": eps, "lambda": lamb}
    values = {name: numbers(f"--{name}", text, float) for name, text in given.items()}
    adaptive.DynamicEvaluator(checkpoint, data, settings, values, dynamic).run(typer.echo)


def cache_eval(
    checkpoint: Checkpoint,
    data: Data,
    *,
    theta: str = option(..., f"Sharpness θ of the cache's attention. {LIST}"),
    lamb: str = option(..., f"Weight λ of the cache. {LIST}", LAMBDA),
    window: str = option(..., f"Number of tokens in the cache. {LIST}"),
    settings: AdaptiveSettings,
    user_dir: UserDir = None,
) -> None:
    """Score a text with a model and a cache of recent words.

    Example: highrank evaluate cache checkpoint_best.pt data-bin --theta 1
    --lambda 0.1 --window 500

    This is the neural cache of Grave et al. (2017). The model alone scores the first --window
    tokens. The recurrent state is carried along, and every token counts once.

    Published values for the AWD-LSTM of Merity et al. (2018): theta 1, lambda 0.1, window 500 on
    Penn Treebank; theta 0.662, lambda 0.1279, window 3785 on WikiText-2. More in
    docs/howto/adaptive_evaluation.md.
    """
    from highrank_plugins.inference.adaptive_evaluation import CacheEvaluator

    require_file(settings.output)
    values: dict[str, Sequence[float]] = {
        "theta": numbers("--theta", theta, float),
        "lambda": numbers("--lambda", lamb, float),
        "window": numbers("--window", window, int),
    }
    CacheEvaluator(checkpoint, data, settings, values, BlockOptions()).run(typer.echo)


# of a recipe's run or a --save-dir, the best first
_CHECKPOINTS = (
    "average/checkpoint.pt", "train/checkpoint_best.pt", "train/checkpoint_last.pt",
    "checkpoint_best.pt", "checkpoint_last.pt",
)  # fmt: skip
_TRANSLATION = re.compile(rb"D-(\d+)\t[^\t]*\t(.*)")


def translate(
    model: Annotated[Path, "Checkpoint, folder of a recipe's run, or exported model."],
    data: Path | None = option(None, "Folder with the dictionaries (default: the training run's)."),
    pieces: Path | None = option(None, "SentencePiece's model, or subword-nmt's codes."),
    beam: int = option(5, "Size of the beam.", ge=1),
    user_dir: UserDir = None,
) -> None:
    """Translate the lines of standard input.

    Example: highrank translate exp/ui_strings_en_de/quickstart

    Prints a line for each, in order, as plain text. An empty line stays empty. Of a run, the
    averaged checkpoint is taken, or else the best.
    """
    with TemporaryDirectory(prefix="highrank-translate-") as scratch:
        words = _model(model, data, pieces, Path(scratch))
        words += ["--beam", str(beam), "--user-dir"]
        words += [str(user_dir or Path(highrank_plugins.__file__).parent)]
        rows = enumerate(getattr(sys.stdin, "buffer", ()), 1)  # none if it is closed
        text = (decoded(f"standard input:{n}", row.removesuffix(b"\n")) for n, row in rows)
        lines = [require_unreserved(fold(line)) for line in text]
        found = _run(words, [line for line in lines if line])
    for line in lines:
        typer.echo(next(found) if line else "")


def _model(model: Path, data: Path | None, pieces: Path | None, scratch: Path) -> list[str]:
    """Return fairseq's words for a model; an exported one becomes a checkpoint in `scratch`."""
    if not model.exists():
        raise ValueError(f"{model}: no such file or folder; a recipe says where its run is")
    places = [model / name for name in _CHECKPOINTS] if model.is_dir() else [model]
    checkpoint = next(filter(Path.is_file, places), None)
    if (model / "model.safetensors").is_file():
        from highrank_plugins.reports.model_folder import import_model

        checkpoint, data = scratch / "model.pt", data or model
        import_model(model, checkpoint)
    if checkpoint is None:
        raise ValueError(f"{model}: neither a checkpoint, nor a folder with one or with a model")
    task = dict(read_checkpoint(checkpoint, "cfg")["task"])
    if "target_lang" not in task:
        raise ValueError(f"{model}: trained for {task['_name']}; a translator is needed")
    trained_on = Path(str(task["data"]).split(":")[0])
    places = [data] if data else [trained_on, model / "data-bin", model.parent / "data-bin"]
    there = next((place for place in places if any(place.glob("dict.*txt"))), None)
    if there is None:
        raise ValueError(f"{places[0]}: no dictionaries; name their folder with --data")
    folders = (there, there.parent / "pieces")
    names = [folder / name for folder in folders for name in ("pieces.model", "codes")]
    pieces = pieces or next(filter(Path.is_file, names), None)
    if pieces is None:
        typer.echo("no pieces beside the dictionaries: lines are taken as words", err=True)
    cut = piece_options(pieces, str(pieces)) if pieces else []
    sides = [s for s in ("source", "target") if task[f"{s}_lang"]]  # or fairseq infers them
    pair = [f"--{side}-lang={task[f'{side}_lang']}" for side in sides]
    return [str(there), *pair, *(w for words in cut for w in words), "--path", str(checkpoint)]


def _run(words: list[str], lines: list[str]) -> Iterator[str]:
    """Return the translations of lines, in their order, from fairseq-interactive."""
    sizes = ["--buffer-size", "1000", "--batch-size", "32"]
    done = subprocess.run(
        [supervise.console_script("fairseq-interactive"), *words, *sizes],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        preexec_fn=end_with_parent,
    )
    found = {int(number): line.decode() for number, line in _TRANSLATION.findall(done.stdout)}
    if done.returncode or len(found) != len(lines):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no translations"]
        raise ValueError(f"fairseq-interactive failed: {last[0]}")
    return iter([found[number] for number in sorted(found)])


evaluate = make_group(
    {"generate": generate, "score": score, "dynamic": dynamic_eval, "cache": cache_eval}
)
