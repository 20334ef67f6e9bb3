"""Every option of fairseq's commands, with a plausible value and with implausible ones."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from fairseq import options

import highrank_plugins
from tests.trainings import NARROW, NARROW_AWD, NARROW_LM

highrank_plugins.register()
TRACEBACK = "Traceback (most recent call last)"
PARSERS = {
    "train": options.get_training_parser,
    "generate": options.get_generation_parser,
    "interactive": options.get_interactive_generation_parser,
    "eval-lm": options.get_eval_lm_parser,
}
SMALL = "--num-workers 0 --cpu --seed 1".split()
TRAIN = [
    *SMALL,
    *"--max-update 1 --max-epoch 1 --optimizer adam --lr 0.001 --no-epoch-checkpoints".split(),
]
HUGE = 2**62
# a value that a person may well give; otherwise a word, a small number or another choice
PLAUSIBLE = {
    "--post-process": "subword_nmt", "--model-overrides": "{'dropout': 0.1}",
    "--optimizer-overrides": "{'lr': [0.1]}", "--lr": "0.1", "--adam-betas": "(0.9, 0.98)",
    "--update-freq": "2", "--lenpen": "0.6", "--valid-subset": "valid,test",
    "--eval-bleu-args": '{"beam": 2}', "--best-checkpoint-metric": "nll_loss",
    "--gen-subset": "valid", "--source-lang": "en", "--target-lang": "de",
    "--save-dir": "saved", "--decoder-layers-to-keep": "0", "--encoder-layers-to-keep": "0",
}  # fmt: skip


def base(command: str, task: str, data: Path, model: Path | None, folder: Path) -> list[str]:
    """Return the command line that an option is added to; it works as it is."""
    lines = {
        "translation": "--source-lang en --target-lang de --max-tokens 300".split(),
        "language_modeling": "--tokens-per-sample 32 --max-tokens 300".split(),
        "bptt_language_modeling": "--bptt 8 --batch-size 4".split(),
    }
    words = [str(data), "--task", task, *lines[task]]
    if command != "train":
        return [
            *words,
            "--path",
            str(model),
            *SMALL,
            *(["--max-len-b", "5"] * (command != "eval-lm")),
        ]
    shapes = {
        "translation": ["--arch", "transformer_mos", *NARROW],
        "language_modeling": ["--arch", "transformer_lm_mos", *NARROW_LM],
        "bptt_language_modeling": ["--arch", "awd_lstm_lm_mos", *NARROW_AWD],
    }
    loss = "bptt_cross_entropy" if task.startswith("bptt") else "highrank_cross_entropy"
    words += ["--criterion", loss, "--save-dir", str(folder / "save"), *shapes[task], *TRAIN]
    return words


def actions(command: str, words: list[str]) -> Iterator[argparse.Action]:
    """Yield all options that a command line has, those of its task and model included."""
    parser = PARSERS[command]()
    options.parse_args_and_arch(parser, words)
    for action in parser._actions:
        if action.option_strings and action.dest != "help" and action.help is not argparse.SUPPRESS:
            yield action


def values(action: argparse.Action) -> list[list[str]]:
    """Return the words to try after the option: a plausible value, then implausible ones."""
    name = action.option_strings[-1]
    if action.nargs == 0:
        return [[]]
    if action.choices:
        others = [str(choice) for choice in action.choices if choice != action.default]
        return [[word] for word in (*others[:2], "nosuch")]
    if action.type is int:
        return [["2"], ["-3"], ["0"], [str(HUGE)]]
    if action.type is float:
        return [["0.5"], ["-3"], ["0"], ["1e300"]]
    plausible = PLAUSIBLE.get(name, str(action.default) if action.default else "typo")
    return [[plausible], ["/nosuch/typo"], [""], ["-1"], ["{'"]]


def cases(command: str, words: list[str], skipped: set[str]) -> Iterator[list[str]]:
    """Yield option and value for each option whose name is not skipped, and add its name."""
    for action in actions(command, words):
        name = max(action.option_strings, key=len)
        if name not in skipped:
            skipped.add(name)
            for value in values(action):
                yield [f"{name}={value[0]}" if value else name]
