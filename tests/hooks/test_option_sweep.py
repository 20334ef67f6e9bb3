"""No wrong option of fairseq's commands ends in a traceback.

The whole sweep tries each option with several values, and takes an hour:
`pytest --run-long tests/hooks/test_option_sweep.py`.
"""

from pathlib import Path

import pytest

from tests.fairseq_cli import attempt
from tests.hooks.option_sweep import HUGE, TRACEBACK, base, cases
from tests.trainings import last

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
        ("generate", "--beam 0", "--beam must be at least 1"),
        ("generate", "--nbest 5 --beam 2", "--nbest must be at most --beam 2"),
        ("generate", "--max-tokens 0", "--max-tokens must be at least 1"),
        ("generate", "--batch-size -1", "--batch-size must be at least 1"),
        ("generate", "--path {folder}", "is a folder; a file is needed here"),
        ("generate", "--path {folder}/text", "text"),
        ("generate", "--path {folder}/half.pt", "half.pt"),
        ("generate", "--gen-subset nosuch", "split nosuch is missing"),
        ("generate", "--source-lang zz", "--source-lang zz"),
        ("generate", "--max-source-positions 2", "--max-source-positions"),
        ("generate", "--post-process typo", "--post-process typo: Unknown post_process option"),
        ("generate", "--diverse-beam-groups 2", "--beam to be divisible"),
        ("generate", "--constraints ordered", "--constraints ordered: "),
        ("interactive", "--input {folder}/long", "--max-source-positions"),
        ("interactive", "--input {folder}/nosuch", "nosuch: no such file"),
        ("interactive", "--score-reference", "--score-reference has no effect"),
        ("train", "--fp16", "--fp16: "),
        ("train", "--tpu", "--tpu: "),
        ("train", "--use-plasma-view", "--use-plasma-view needs plasma, which is not installed"),
        ("train", "--finetune-from-model typo.pt", "--finetune-from-model typo.pt does not exist"),
        ("train", "--best-checkpoint-metric blue", "--best-checkpoint-metric"),
        ("train", "--criterion adaptive_loss", "--criterion adaptive_loss: AdaptiveLoss is not"),
        ("train", "--bpe bytes", "--bpe bytes: "),
        ("train", "--write-checkpoints-asynchronously", "asynchronously needs iopath"),
        ("train", f"--head-components {HUGE}", f"--head-components {HUGE}: "),
        ("train", f"--encoder-embed-dim {HUGE}", f"--encoder-embed-dim {HUGE}: "),
        ("train", "--encoder-embed-dim 2", "--encoder-embed-dim 2: "),
        ("train", "--past-target", "leave out --self-target and --past-target"),
        ("train", "--output-dictionary-size 2", "--output-dictionary-size must be at least 4"),
        ("train", "--weight-decay 1e300", "--weight-decay 1e+300: expected a finite number"),
        ("train", "--base-layers 2", "--base-layers 2"),
        ("train", "--max-tokens 2", "raise --max-tokens"),
    ],
)  # fmt: skip
def test_a_mistake_ends_with_one_line_that_names_it(command, words, said, lines, tmp_path):
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
