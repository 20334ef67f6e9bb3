"""YAML with inheritance, and its words for a shell: what comes out, where errors are said to be."""

import re
import shlex
from itertools import chain
from pathlib import Path

import pytest

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.training.command_line import arguments, shell_line
from highrank_plugins.training.configuration import load, load_tree, validate
from highrank_plugins.training.model_size import check_options

RECIPES = Path(__file__).parents[2] / "recipes"
TRANSLATION = RECIPES / "multi30k_en_de" / "conf" / "mixtape.yaml"

BASE = """\
data:
  vocab_size: 100
train:
  arch: transformer_softmax
  lr: 2e-3
  keep_last_epochs: 3
average:
  last: 2
"""
LM = "train:\n  lr: 1\n"


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode(errors="surrogateescape"))
        return path

    write("base.yaml", BASE)
    return write


def test_a_child_and_overrides_add_replace_and_remove_options_also_of_the_base_of_its_base(write):
    write("middle.yaml", "base: base.yaml\ntrain: {seed: 1, dropout: 0.3}\n")
    text = "base: middle.yaml\ntrain:\n  arch: transformer_mos\n  lr: null\n  seed: 3\n"
    path = write("mos.yaml", f"{text}generate: {{beam: 5}}\n")
    configuration = load(path)
    train = {"arch": "transformer_mos", "keep_last_epochs": 3, "seed": 3, "dropout": 0.3}
    assert configuration.train == train
    assert configuration.average.last == 2 and configuration.data.vocab_size == 100
    assert configuration.generate == {"beam": 5}
    removed = load(path, ["generate=null", "seed=null"])
    assert removed.generate == {}
    assert removed.train == {name: value for name, value in train.items() if name != "seed"}
    changed = load(path, ["lr=1e-4", "fp16=true", "data.vocab_size=7", "generate.beam=2"])
    assert changed.train["lr"] == "1e-4" and changed.train["fp16"] is True
    assert changed.data.vocab_size == 7 and changed.generate == {"beam": 2}
    again = load(write("b.yaml", changed.text()))
    assert again == changed and again.text() == changed.text()
    reversed_blocks = "generate: {beam: 5, flag: 'True'}\n" + BASE
    text = BASE + "generate: {flag: 'True', beam: 5}\n"
    assert load(write("c.yaml", reversed_blocks)).text() == load(write("d.yaml", text)).text()
    text = "base: base.yaml\ntrain: {source_lang: no, target_lang: on, a: 12:30, b: 2024-09-09}\n"
    options = load(write("leaf.yaml", text), ["c=010", "d=yes"]).options("train")
    expected = {"source_lang": "no", "target_lang": "on", "a": "12:30", "b": "2024-09-09"}
    assert options.items() >= (expected | {"c": "010", "d": "yes"}).items()


DECAY, PAIR = "lr_scheduler=polynomial_decay", ["source_lang=en", "target_lang=de"]


@pytest.mark.parametrize(
    ("overrides", "block", "options"),
    [
        ([DECAY, "max_update=9"], "finetune", {"total_num_update": 9}),
        ([DECAY, "max_update=9", "finetune.max_update=3"], "finetune", {"total_num_update": 3}),
        ([f"finetune.{DECAY}", "max_update=9"], "finetune", {"total_num_update": 9}),
        ([DECAY, "max_update=9", "total_num_update=5"], "train", {"total_num_update": 5}),
        (["lr_scheduler=inverse_sqrt", "max_update=9"], "train", {"total_num_update": None}),
        # translations are joined as the text was split
        ([], "generate", {"post_process": "sentencepiece", "tokenizer": None}),
        (["data.algorithm=subword_nmt"], "generate",
         {"post_process": "subword_nmt", "tokenizer": "moses"}),
        ([*PAIR, "task=translation", "max_source_positions=9"], "generate",
         {"task": "translation", "source_lang": "en", "target_lang": "de",
          "max_source_positions": 9, "beam": 2}),
    ],
)  # fmt: skip
def test_options_follow_from_other_blocks(write, overrides, block, options):
    configuration = load(write("leaf.yaml", "base: base.yaml\n"), [*overrides, "generate.beam=2"])
    found = configuration.options(block)
    assert {name: found.get(name) for name in options} == options


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["generate.remove_bpe=subword_nmt"], "generate.remove_bpe: write generate.post_process"),
        *(([f"{name}=A", f"{block}.{name}=B"], f"{block}.{name}=B: {block}.{name}: 'B', but train."
           f"{name} is 'A'; remove {block}.{name}, which follows train.{name}")
          for block, name in (("generate", "source_lang"), ("finetune", "target_lang"),
                              ("evaluate", "task"), ("kld", "user_dir"))),
        (["generate.bpe=subword_nmt"], "but data.algorithm is 'sentencepiece'; remove generate.b"),
        *(([f"{name}=x"], f"{name}: set by the recipe, remove it")
          for name in ("train.save_dir", "evaluate.path", "kld.output", "kld.split")),
        (["lr=1", "train.lr=1"], "--set train.lr=1: --set lr=1 sets this, too; keep one"),
        *(([given], "write --set key=value") for given in ("lr", "=3", "train.=3")),
        *(([f"lr={v}"], "invalid YAML: ") for v in ("*a", "[1", "'", "\x07", "9" * 5000)),
        *(([f"{name}=1e3"], f"train.{name}: expected a whole number, got '1e3")  # as YAML 1.1
          for name in ("save_interval_updates", "keep_last_epochs")),
        (["data.vocab_size=x"], "--set data.vocab_size=x: data.vocab_size: "),
    ],
)  # fmt: skip
def test_a_wrong_override_is_refused_in_one_line(write, overrides, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)) as refused:
        load(write("a.yaml", "base: base.yaml\n"), overrides)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: base.yaml\ntrian:\n  lr: 1\n", "bad.yaml:2: trian: unknown key; did you mean 'tra"),
        *((f"{LM}corpus: {{{name}: 0}}\n", f"bad.yaml:3: corpus.{name}: Input should be greater")
          for name in ("vocab_size", "max_train_lines")),
        ("base: base.yaml\ntrain:\n  lr: 1\n  lr: 2\n", "bad.yaml:4: lr is given twice"),
        *((f"base: base.yaml\ntrain: {{{name}: {value}}}\n",
           f"average.last is 2, but train.{name} is {value.capitalize()}; keep at least as many")
          for name, value in (("keep_last_epochs", "1"), ("max_epoch", "1"),
                              ("no_epoch_checkpoints", "true"))),
        (LM, "bad.yaml: needs one of the blocks data (translation) and corpus (language model)"),
        ("base: bsae.yaml\n", "bsae.yaml: no such configuration; did you mean 'base'?"),
        ("base: bad.yaml\n", "bad.yaml: inherits from itself"),
        ("base: wrong.yaml\n", "wrong.yaml:8: average.lst: unknown key"),
        ("base: base.yaml\ntrain: {lr: 1\n", "bad.yaml:3: invalid YAML"),
        *((f"base: base.yaml\ntrain:\n  seed: {word}\n", "bad.yaml:3: invalid YAML: ")
          for word in ("0x_", "!!bool x", "!!timestamp x")),
        ("a: &x {b: 1}\ntrain: *x\n", "bad.yaml:2: invalid YAML: the alias *x is not allowed"),
        ("{a: " * 3000 + "}" * 3000, "bad.yaml: invalid YAML: maximum recursion depth"),
    ],
)  # fmt: skip
def test_errors_say_where_and_what(write, text, message):
    write("wrong.yaml", BASE.replace("last: 2", "lst: 2"))
    with pytest.raises(ConfigurationError) as caught:
        load(write("bad.yaml", text))
    assert message in str(caught.value)


def test_a_shell_reads_back_what_was_written():
    options = {"adam_betas": "(0.9, 0.98)", "max_tokens": 20, "fp16": True, "amp": False}
    rows = [["--adam-betas", "(0.9, 0.98)"], ["--max-tokens", "20"], ["--fp16"]]
    assert arguments(options) == rows
    words = shlex.split(shell_line("fairseq-train", options).replace("\\\n", ""))
    assert words[:-1] == ["fairseq-train", *chain(*rows), "--user-dir"]


def refused(path: Path, *overrides: str) -> list[str]:
    """Return the lines of the refusal of a configuration."""
    tree = load_tree(path, list(overrides))
    with pytest.raises(ConfigurationError) as caught:
        check_options(validate(tree), tree)
    return sorted(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("max_tokns=5", "train.max_tokns: unrecognized arguments: --max-tokns 5; did you mean '-"),
        ("lr=-1", "train.lr: must be at least 0, got -1"),
        ("head_components=3", "--head mixtape: --head-components must be a power of two"),
        ("update_epoch_batch_itr=true", "--update-epoch-batch-itr: expected one argument"),
    ],
)
def test_an_option_that_fairseq_rejects_is_named_with_its_place(override, message):
    (problem,) = refused(TRANSLATION, override)
    assert problem.startswith(f"--set {override}: ")
    assert message in problem


def test_all_wrong_options_are_listed_once_with_file_and_line(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(f"base: {TRANSLATION}\ntrain:\n  clip_norm: -1\n  max_update: -5\n")
    assert refused(path) == [
        f"{path}:3: train.clip_norm: must be at least 0, got -1",
        f"{path}:4: train.max_update: must be at least 0, got -5",
    ]
    # what finetuning inherits is said once: the second place would be a file without the option
    path.write_text(f"base: {RECIPES / 'ptb/conf/small/mos.yaml'}\nfinetune:\n  lr: 3\n")
    for block in ("train", "finetune"):
        (line,) = refused(path, override := f"{block}.head_gate_dropout=0.1")
        assert line.split(": ")[:2] == [f"--set {override}", f"{block}.head_gate_dropout"]
