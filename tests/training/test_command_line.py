"""Options to words for a shell, and their check by fairseq's own parser."""

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


def test_a_shell_reads_back_what_was_written():
    options = {"adam_betas": "(0.9, 0.98)", "max_tokens": 20, "fp16": True, "amp": False}
    rows = [["--adam-betas", "(0.9, 0.98)"], ["--max-tokens", "20"], ["--fp16"]]
    assert arguments(options) == rows
    words = shlex.split(shell_line("fairseq-train", options).replace("\\\n", ""))
    assert words[:-1] == ["fairseq-train", *chain(*rows), "--user-dir"]


@pytest.mark.parametrize("option", ["train.save_dir", "evaluate.path", "kld.output", "kld.split"])
def test_options_set_by_the_recipe_cannot_be_configured(option):
    with pytest.raises(ConfigurationError, match=f"{option}: set by the recipe, remove it"):
        load(TRANSLATION, [f"{option}=x"])


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
        ("generate.baem=5", "unrecognized arguments: --baem 5; did you mean '--beam'?"),
        ("arch=transformer_mixtpae", "choice: 'transformer_mixtpae'; did you mean 'transformer_m"),
        ("max_tokens=many", "train.max_tokens: argument --max-tokens: invalid int value: 'many'"),
        ("lr=-1", "train.lr: must be at least 0, got -1"),
        ("dropout=.nan", "train.dropout: nan: expected a finite number"),
        ("head_components=3", "--head mixtape: --head-components must be a power of two"),
        ("head_gss_k=0", "train.head_gss_k: --head-gss-k: --head mixtape with --head-pointwise"),
        ("head_pointwise=gs", "train.head_pointwise: --head-pointwise: unknown"),
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
    path.write_text(f"base: {TRANSLATION}\ntrain:\n  clip_nrom: 1\n  warmup_update: 3\n")
    (line,) = refused(path)
    assert line.startswith(f"{path}:3: train.clip_nrom: unrecognized arguments: ")
    # what finetuning inherits is said once: the second place would be a file without the option
    path.write_text(f"base: {RECIPES / 'ptb/conf/small/mos.yaml'}\nfinetune:\n  lr: 3\n")
    for block in ("train", "finetune"):
        (line,) = refused(path, override := f"{block}.head_gate_dropout=0.1")
        assert line.split(": ")[:2] == [f"--set {override}", f"{block}.head_gate_dropout"]
