"""Options to words for a shell, and their check by fairseq's own parser."""

import shlex
from pathlib import Path

import pytest

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.training.command_line import arguments, shell_line
from highrank_plugins.training.configuration import load, load_tree, validate
from highrank_plugins.training.model_size import check_options

RECIPES = Path(__file__).parents[2] / "recipes"
TRANSLATION = RECIPES / "multi30k_en_de" / "conf" / "mixtape.yaml"


def test_booleans_are_flags_and_everything_else_has_a_value():
    options = {"max_tokens": 20, "fp16": True, "amp": False, "update_epoch_batch_itr": "True"}
    words = [["--max-tokens", "20"], ["--fp16"], ["--update-epoch-batch-itr", "True"]]
    assert arguments(options) == words


def test_a_shell_reads_back_what_was_written():
    options = {"adam_betas": "(0.9, 0.98)", "lr": "2e-3", "fp16": True}
    words = shlex.split(shell_line("fairseq-train", options).replace("\\\n", ""))
    assert words[:-1] == [
        *("fairseq-train", "--adam-betas", "(0.9, 0.98)", "--lr", "2e-3", "--fp16", "--user-dir")
    ]


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
        ("head_component=5", "--head-component 5; did you mean '--head-components'?"),
        ("generate.baem=5", "unrecognized arguments: --baem 5; did you mean '--beam'?"),
        ("arch=transformer_mixtpae", "choice: 'transformer_mixtpae'; did you mean 'transformer_m"),
        ("max_tokens=many", "train.max_tokens: argument --max-tokens: invalid int value: 'many'"),
        ("lr=-1", "train.lr: must be at least 0, got -1"),
        ("head_context_scale=.inf", "train.head_context_scale: inf: expected a finite number"),
        ("dropout=.nan", "train.dropout: nan: expected a finite number"),
        ("dropout=2", "train.dropout: must lie in [0, 1), got 2"),
        ("generate.beam=0", "generate.beam: must be at least 1, got 0"),
        ("head_components=0", "train.head_components: --head mixtape: --head-components must be"),
        ("head_components=3", "--head mixtape: --head-components must be a power of two"),
        ("head_gate_dim=0", "train.head_gate_dim: --head mixtape: --head-gate-dim must be at leas"),
        ("head_embed_dim=0", "train.head_embed_dim: must be at least 1, got 0"),
        ("head_gss_k=0", "train.head_gss_k: --head-gss-k: --head mixtape with --head-pointwise"),
        ("head_pointwise=gs", "train.head_pointwise: --head-pointwise: unknown"),
        ("update_epoch_batch_itr=true", "--update-epoch-batch-itr: expected one argument"),
    ],
)
def test_an_option_that_fairseq_rejects_is_named_with_its_place(override, message):
    (problem,) = refused(TRANSLATION, override)
    assert problem.startswith(f"--set {override}: ")
    assert message in problem


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ("clip_norm: -1\n  max_update: -5", [
            "train.clip_norm: must be at least 0, got -1",
            "train.max_update: must be at least 0, got -5"]),
        ("clip_nrom: 1\n  warmup_update: 3", ["train.clip_nrom: unrecognized arguments: "]),
    ],
)  # fmt: skip
def test_all_wrong_numbers_and_names_are_listed_with_file_and_line(tmp_path, options, messages):
    path = tmp_path / "bad.yaml"
    path.write_text(f"base: {TRANSLATION}\ntrain:\n  {options}\n")
    for number, (line, message) in enumerate(zip(refused(path), messages, strict=True), 3):
        assert line.startswith(f"{path}:{number}: {message}")


@pytest.mark.parametrize("block", ["train", "finetune"])
def test_an_option_that_finetuning_inherits_is_reported_once(tmp_path, block):
    """The second place would be a file that does not have the option."""
    path, override = tmp_path / "bad.yaml", f"{block}.head_gate_dropout=0.1"
    path.write_text(f"base: {RECIPES / 'ptb/conf/small/mos.yaml'}\nfinetune:\n  lr: 3\n")
    (line,) = refused(path, override)
    assert line.split(": ")[:2] == [f"--set {override}", f"{block}.head_gate_dropout"]
