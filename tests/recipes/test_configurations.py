"""Every configuration that is shipped is one: each option exists and has a value of its type."""

import pytest
from click.testing import CliRunner

from highrank_plugins.cli import as_command
from highrank_plugins.cli.train import check_measures, configure
from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.training import configuration
from highrank_plugins.training.model_size import check_options
from scripts.try_configurations import configurations
from tests.recipes.running import RECIPES


def check(tree):
    settings = configuration.validate(tree)
    check_measures(settings, tree)
    check_options(settings, tree)
    return settings


# recipe of a language model → what its architectures end with
PRESETS = {"ptb": "ptb", "wikitext2": "wt2", "one_billion_word": "1b", "text8": "text8"}


@pytest.mark.parametrize("file", configurations(), ids=lambda path: str(path.relative_to(RECIPES)))
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
    ("corpus.vocab_size=many", "{}corpus.vocab_size: Input should be a valid integer"),
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


@pytest.mark.parametrize(("file", "words"), [
    ("wmt14_en_de/conf/yang2019/mixtape.yaml", []),  # its block `launch` alone
    ("ptb/conf/small/mos.yaml", ["--launch", "--processes 2 --max-restarts 1"]),
])  # fmt: skip
def test_a_launch_is_rehearsed_before_its_commands_are_written(file, words, tmp_path):
    out = ["--output", str(tmp_path / "config.yaml"), "--commands", str(tmp_path / "commands")]
    done = CliRunner().invoke(as_command(configure), [str(RECIPES / file), *out, *words])
    assert done.exit_code == 0, done.output
    launch = (tmp_path / "commands" / "launch.sh").read_text()
    assert ("--processes 2" in launch) == bool(words) and len(launch) > 9


def test_finetuning_inherits_the_options_of_the_run_and_every_base_is_used():
    settings = configuration.load(PTB)
    options = settings.options("finetune")
    assert options["lr"] == 25 and options["asgd_at_epoch"] == 0 and settings.train["lr"] == 20
    assert options["arch"] == settings.train["arch"]
    used = {
        (path.parent / line.removeprefix("base: ")).resolve()
        for path in RECIPES.glob("*/conf/**/*.yaml")
        for line in path.read_text().splitlines()
        if line.startswith("base: ")
    }
    assert {*RECIPES.glob("*/conf/**/base*.yaml")} <= used
