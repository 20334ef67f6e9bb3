"""No wrong option of fairseq's commands ends in a traceback.

The whole sweep tries each option with several values, and takes an hour:
`pytest --run-long tests/hooks/test_option_sweep.py`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest
from fairseq import options

import highrank_plugins
from tests.fairseq_cli import attempt
from tests.trainings import NARROW, NARROW_AWD, NARROW_LM, last

highrank_plugins.register()
TRACEBACK = "Traceback (most recent call last)"
PARSERS = {
    "train": "training", "generate": "generation", "interactive": "interactive_generation",
    "eval-lm": "eval_lm",
}  # fmt: skip
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
TRANSLATION, *TEXT = "translation", "language_modeling", "bptt_language_modeling"
LINES = {
    TRANSLATION: "--source-lang en --target-lang de --max-tokens 300",
    TEXT[0]: "--tokens-per-sample 32 --max-tokens 300",
    TEXT[1]: "--bptt 8 --batch-size 4",
}
MODELS = {
    TRANSLATION: ["transformer_mos", *NARROW, "--criterion", "highrank_cross_entropy"],
    TEXT[0]: ["transformer_lm_mos", *NARROW_LM, "--criterion", "highrank_cross_entropy"],
    TEXT[1]: ["awd_lstm_lm_mos", *NARROW_AWD, "--criterion", "bptt_cross_entropy"],
}
TRAIN = "--max-update 1 --max-epoch 1 --optimizer adam --lr 0.001 --no-epoch-checkpoints".split()


@pytest.fixture(scope="session")
def lines(request, tmp_path_factory):
    """Return a function: the working command line of a command and a task, in a folder."""
    folder = tmp_path_factory.mktemp("sweep")

    def line(command: str, task: str, where: Path) -> list[str]:
        data = request.getfixturevalue("mt_data" if task == TRANSLATION else "lm_data")
        more = f"--task {task} {LINES[task]} --num-workers 0 --cpu --seed 1".split()
        if command == "train":
            return [str(data), *more, "--save-dir", str(where / "save"), *TRAIN, "--arch",
                    *MODELS[task]]  # fmt: skip
        model = last(folder / task / "save")
        if not model.exists():
            done = attempt("train", *line("train", task, folder / task))
            assert done.code == 0, done.output
        length = ["--max-len-b", "5"] * (command != "eval-lm")
        return [str(data), *more, "--path", str(model), *length]

    return line


def cases(command: str, words: list[str], skipped: set[str]) -> Iterator[str]:
    """Yield words for each option whose name is not skipped, and add its name.

    A plausible value comes first. Options of the task and the model are included.
    """
    parser = getattr(options, f"get_{PARSERS[command]}_parser")()
    options.parse_args_and_arch(parser, words)
    for action in parser._actions:
        name = max([*action.option_strings, ""], key=len)
        if action.dest == "help" or action.help is argparse.SUPPRESS or name in skipped | {""}:
            continue
        skipped.add(name)
        known = PLAUSIBLE.get(name, str(action.default) if action.default else "typo")
        values = [known, "/nosuch/typo", "", "-1", "{'"]
        if action.choices:
            others = [str(choice) for choice in action.choices if choice != action.default]
            values = [*others[:2], "nosuch"]
        elif action.type in (int, float):
            values = (
                ["2", "-3", "0", str(HUGE)] if action.type is int else ["0.5", "-3", "0", "1e300"]
            )
        yield from [name] if action.nargs == 0 else [f"{name}={value}" for value in values]


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("generate", "--path {folder}", "is a folder; a file is needed here"),
        ("generate", "--path {folder}/half.pt", "half.pt"),
        ("generate", "--max-source-positions 2", "--max-source-positions"),
        ("interactive", "--input {folder}/long", "--max-source-positions"),
        ("train", "--fp16", "Torch not compiled with CUDA"),
        ("train", "--tpu", "an option that fairseq.utils reads: "),
        ("train", f"--head-components {HUGE}", "--head-components must be at most 4294967296"),
        ("train", "--past-target", "leave out --self-target and --past-target"),
        ("train", "--max-tokens 2", "raise --max-tokens"),
        ("train", "--lr-scheduler tri_stage", "please specify steps or phase_ratio"),
    ],
)  # fmt: skip
def test_a_mistake_ends_with_one_line(command, words, said, lines, tmp_path):
    task = TEXT[0] if words.startswith(("--past", "--output-d")) else TRANSLATION
    line = lines(command, task, tmp_path)
    if command != "train":
        model = Path(line[line.index("--path") + 1]).read_bytes()
        (tmp_path / "half.pt").write_bytes(model[: len(model) // 2])
    (tmp_path / "long").write_text("a " * 300_000 + "\n")
    done = attempt(command, *line, *words.format(folder=tmp_path).split(), folder=tmp_path)
    assert done.code == 2, done.output
    *_, shown = done.output.splitlines()
    assert shown.startswith(f"fairseq-{command}: error: ") and said in shown
    assert TRACEBACK not in done.output


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize(
    ("command", "tasks"),
    [
        ("train", [TRANSLATION, *TEXT]),
        ("generate", [TRANSLATION]),
        ("interactive", [TRANSLATION]),
        ("eval-lm", TEXT),
    ],
)
def test_no_value_of_any_option_ends_in_a_traceback(command, tasks, lines, tmp_path):
    seen, found = set(), []
    for task in tasks:
        for number, words in enumerate(cases(command, lines(command, task, tmp_path), seen)):
            folder = tmp_path / f"{task}{number}"
            folder.mkdir()
            line, typed = [*lines(command, task, folder), words], "a dog sleeps\nthe house\n"
            done = attempt(command, *line, stdin=typed, timeout=60, folder=folder)
            if TRACEBACK in done.output:
                found.append((task, words, done.output.splitlines()[-1]))
    assert len(seen) > 100 and found == []
