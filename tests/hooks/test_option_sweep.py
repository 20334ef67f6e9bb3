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
SMALL = "--num-workers 0 --cpu --seed 1".split()
TRAIN = "--max-update 1 --max-epoch 1 --optimizer adam --lr 0.001 --no-epoch-checkpoints".split()
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
    lines, shape = {
        TRANSLATION: ("--source-lang en --target-lang de --max-tokens 300",
                      ["transformer_mos", *NARROW]),
        TEXT[0]: ("--tokens-per-sample 32 --max-tokens 300", ["transformer_lm_mos", *NARROW_LM]),
        TEXT[1]: ("--bptt 8 --batch-size 4", ["awd_lstm_lm_mos", *NARROW_AWD]),
    }[task]  # fmt: skip
    words = [str(data), "--task", task, *lines.split(), *SMALL]
    if command != "train":
        return [*words, "--path", str(model), *(["--max-len-b", "5"] * (command != "eval-lm"))]
    loss = "bptt_cross_entropy" if task == TEXT[1] else "highrank_cross_entropy"
    where = ["--criterion", loss, "--save-dir", str(folder / "save"), "--arch"]
    return [*words, *where, *shape, *TRAIN]


def actions(command: str, words: list[str]) -> Iterator[argparse.Action]:
    """Yield all options that a command line has, those of its task and model included."""
    parser = getattr(options, f"get_{PARSERS[command]}_parser")()
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


TRANSLATION, *TEXT = "translation", "language_modeling", "bptt_language_modeling"
LINES = "a dog sleeps\nthe house\n"


@pytest.fixture(scope="session")
def lines(request, tmp_path_factory):
    """Return a function: the working command line of a command and a task, in a folder."""
    folder = tmp_path_factory.mktemp("sweep")

    def line(command: str, task: str, where: Path) -> list[str]:
        data = request.getfixturevalue("mt_data" if task == TRANSLATION else "lm_data")
        model = last(folder / task / "save")
        if command != "train" and not model.exists():
            (folder / task).mkdir()
            done = attempt("train", *base("train", task, data, None, folder / task))
            assert done.code == 0, done.output
        return base(command, task, data, model, where)

    return line


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("generate", "--path {folder}", "is a folder; a file is needed here"),
        ("generate", "--path {folder}/half.pt", "half.pt"),
        ("generate", "--max-source-positions 2", "--max-source-positions"),
        ("generate", "--post-process typo", "--post-process typo: Unknown post_process option"),
        ("generate", "--diverse-beam-groups 2", "--beam to be divisible"),
        ("generate", "--constraints ordered", "an option that fairseq.search reads: "),
        ("interactive", "--input {folder}/long", "--max-source-positions"),
        ("train", "--fp16", "Torch not compiled with CUDA"),
        ("train", "--tpu", "an option that fairseq.utils reads: "),
        ("train", "--use-plasma-view", "--use-plasma-view needs plasma, which is not installed"),
        ("train", "--finetune-from-model typo.pt", "--finetune-from-model typo.pt does not exist"),
        ("train", "--criterion adaptive_loss", "--criterion adaptive_loss: AdaptiveLoss is not"),
        ("train", "--bpe bytes", "--bpe bytes: "),
        ("train", "--write-checkpoints-asynchronously", "asynchronously needs iopath"),
        ("train", f"--head-components {HUGE}", "--head-components must be at most 4294967296"),
        ("train", "--encoder-embed-dim 2", "sinusoidal_positional_embedding reads: "),
        ("train", "--past-target", "leave out --self-target and --past-target"),
        ("train", "--output-dictionary-size 2", "--output-dictionary-size must be at least 4"),
        ("train", "--base-layers 2", "an option that fairseq.distributed.utils reads: "),
        ("train", "--max-tokens 2", "raise --max-tokens"),
        ("train", "--lr-scheduler inverse_sqrt --warmup-updates 0", "inverse_square_root_schedule"),
        ("train", "--lr-scheduler triangular --max-lr 1 --lr-period-updates 1", "triangular_lr_s"),
        ("train", "--lr-scheduler tri_stage", "please specify steps or phase_ratio"),
    ],
)  # fmt: skip
def test_a_mistake_ends_with_one_line(command, words, said, lines, tmp_path):
    task = TEXT[0] if words.startswith(("--past", "--output-d")) else TRANSLATION
    line = lines(command, task, tmp_path)
    if command != "train":
        model = Path(line[line.index("--path") + 1]).read_bytes()
        (tmp_path / "half.pt").write_bytes(model[: len(model) // 2])
    (tmp_path / "text").write_text("no checkpoint\n")
    (tmp_path / "long").write_text("a " * 300_000 + "\n")
    words = words.format(folder=tmp_path).split()
    done = attempt(command, *line, *words, folder=tmp_path)
    assert done.code == 2, done.output
    *_, shown = done.output.splitlines()
    assert shown.startswith(f"fairseq-{command}: error: ") and said in shown
    assert TRACEBACK not in done.output


@pytest.mark.parametrize("empty", [True, False])
def test_data_of_another_kind_end_with_one_line(empty, lines, lm_data, tmp_path):
    line = lines("generate", TRANSLATION, tmp_path)
    line[0] = str(tmp_path if empty else lm_data)
    done = attempt("generate", *line, folder=tmp_path)
    assert done.code == 2 and TRACEBACK not in done.output
    assert f"fairseq-generate: error: --source-lang en: {line[0]} has no dict.en.txt" in done.output


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
        line = lines(command, task, tmp_path)
        for number, words in enumerate(cases(command, line, seen)):
            folder = tmp_path / f"{task}{number}"
            folder.mkdir()
            words = [*lines(command, task, folder), *words]
            done = attempt(command, *words, stdin=LINES, timeout=60, folder=folder)
            if TRACEBACK in done.output:
                found.append((task, words[-1], done.output.splitlines()[-1]))
    assert len(seen) > 100 and found == []
