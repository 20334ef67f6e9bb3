"""Every configuration that is shipped is one: each option exists and has a value of its type."""

import pytest

from highrank_plugins.cli.train import check_measures
from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.training import configuration
from highrank_plugins.training.model_size import check_options
from scripts import try_configurations as script
from tests.recipes.running import RECIPES


def check(tree):
    settings = configuration.validate(tree)
    check_measures(settings, tree)
    check_options(settings, tree)
    return settings


# recipe of a language model → what its architectures end with
PRESETS = {"ptb": "ptb", "wikitext2": "wt2", "one_billion_word": "1b", "text8": "text8"}


@pytest.mark.parametrize(
    "file", script.configurations(), ids=lambda path: str(path.relative_to(RECIPES))
)
def test_fairseq_and_our_commands_accept_every_configuration_and_it_is_complete(file):
    train = check(configuration.load_tree(file, [])).train
    recipe = file.relative_to(RECIPES).parts[0]
    assert "arch" in train
    if recipe not in PRESETS:
        return
    assert train["arch"].endswith("_" + PRESETS[recipe])
    assert {"task", "criterion", "optimizer", "lr", "batch_size", "max_epoch", "seed"} <= set(train)
    assert ("head_plif_lr" in train) == ("plif" in train["arch"] and "frozen" not in file.stem)
    if file.parent.name == "parthiban2021":
        assert train.get("asgd_at_epoch") == (200 if file.stem.endswith("_et") else None)


PTB = RECIPES / "ptb" / "conf" / "yang2018" / "mos.yaml"


@pytest.mark.parametrize(("change", "message"), [
    ("dynamic_eval.eqs=1", "{}dynamic_eval.eqs: No such option: --eqs (Possible opt"),
    ("spectrum.dtype=int8", "{}spectrum.dtype: Invalid value for '--dtype': Value err"),
    ("train.fp16=no", "{}train.fp16: 'no': it is a flag: write true or"),
    ("finetune.nonmno=3", "{}finetune.nonmno: unrecognized arguments: --nonmno 3; did you mean"),
    ("evaluate.eval_streams=x", "evaluate.eval_streams: argument --eval-streams: invalid int"),
    # what would fail after the run
    ("kld.pairs=1", "kld: --pairs 1: must be at least 2, for a standard error"),
    ("cache_eval.theta=1", "cache_eval: Missing option '--lambda'"),
])  # fmt: skip
def test_a_wrong_option_is_refused_before_anything_is_computed(change, message):
    with pytest.raises(ConfigurationError) as caught:
        check(configuration.load_tree(PTB, [change]))
    assert message.format(f"--set {change}: ") in str(caught.value)


def test_finetuning_inherits_the_options_of_the_run():
    settings = configuration.load(PTB)
    options = settings.options("finetune")
    assert options["lr"] == 25 and options["asgd_at_epoch"] == 0 and settings.train["lr"] == 20
    assert options["arch"] == settings.train["arch"]


def test_every_configuration_has_trained_and_the_page_names_what_is_left_out():
    """A new file needs a row: python scripts/try_configurations.py --help says how."""
    lines = script.PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    assert [tuple(row[:2]) for row in rows] == [*map(script.name_of, script.configurations())]
    assert {row[-1] for row in rows} == {"falls"}
    assert script.PAGE.read_text(encoding="utf-8") == script.page(rows)
    files = (script.ROOT / "recipes").glob("*/conf/**/*.yaml")
    kept = {path for path in files if not path.name.startswith("base")}
    left_out = {"/".join(script.name_of(path)) for path in kept - set(script.configurations())}
    assert left_out == set(script.LEFT_OUT)
