"""What `highrank train configure` writes for recipes, as bash reads it."""

import subprocess

import pytest
import yaml

from highrank_plugins.cli.train import check_measures
from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.common.files import files_digest
from highrank_plugins.common.user_error import UserError
from highrank_plugins.measures import find_measure, measure_names
from highrank_plugins.training.command_line import write_recipe_files
from highrank_plugins.training.configuration import load, load_tree, validate
from tests.cli import highrank

TRAIN = {
    "arch": "transformer_softmax", "optimizer": "adam", "adam_betas": "(0.9, 0.98)",
    "max_tokens": 600,
}  # fmt: skip
BASE = {"data": {"vocab_size": 7}, "train": TRAIN | {"save_interval_updates": 0}}


@pytest.fixture
def configure(tmp_path):
    """Return a function that writes a configuration's files, and one that runs bash on them."""
    file, folder = tmp_path / "conf.yaml", tmp_path / "it's here"

    def configure(*words: object, **blocks: object):
        file.write_text(yaml.safe_dump(BASE | blocks))
        (tmp_path / "config.yaml").write_text(load(file).text())
        given = ["train", "configure", file, "--output", tmp_path / "config.yaml"]
        result = highrank(*map(str, (*given, "--commands", folder, *words)))
        assert result.exit_code == 0, result.output
        return result

    def bash(script: str) -> str:
        command = ["bash", "-euc", f'source "$0/settings.sh"; {script}', str(folder)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    configure.bash, configure.folder, configure.file = bash, folder, file
    return configure


def test_bash_reads_every_value_and_files_of_the_user_stay(configure, tmp_path):
    configure(finetune={"lr": 1})
    assert "--max-tokens 600" in (configure.folder / "finetune.sh").read_text()
    (configure.folder / "mine.sh").write_text("echo mine")
    configure()  # a step without options loses an old command
    read = configure.bash("echo ${settings[train.adam_betas]} ${settings[data.vocab_size]}")
    assert read == "(0.9, 0.98) 7"
    assert yaml.safe_load(configure.bash('echo "${settings[train]}"')) == BASE["train"]
    assert configure.bash("echo ${#measures[@]} $dry_run $other_nodes") == "0"
    names = {path.name for path in configure.folder.iterdir()}
    assert not {"finetune.sh", "launch.sh", "corpus.sh"} & names
    assert (configure.folder / "mine.sh").read_text() == "echo mine"
    (tmp_path / "train.sh").write_text("echo mine")
    with pytest.raises(UserError, match=r"train\.sh would be replaced.*: name another folder"):
        write_recipe_files(load(configure.file), tmp_path, None, {})
    assert (tmp_path / "train.sh").read_text() == "echo mine"
    corpus = tmp_path / "corpus.yaml"
    corpus.write_text("gigabytes: 3\nfiles:\n  a.tgz: {url: x, sha256: unknown, source: nobody}\n")
    configure("--launch=--processes 2 --dry-run", "--corpus", corpus)
    assert configure.bash('echo "$dry_run $gigabytes ${archives[*]}"') == "yes 3 a.tgz"


NEEDED = {  # options without a default
    "cache_eval": {"theta": 1, "lambda": 0.1, "window": 5},
    "dynamic_eval": {"lr": 1e-3, "eps": 1e-3, "lambda": 0.1},
    "word_similarity": {"benchmark": "pairs.txt"},
    "reach": {"other": "teacher.pt"},
}


@pytest.mark.parametrize("name", measure_names())
def test_every_measure_may_be_a_block(configure, name):
    train = {"user_dir": "my_layers", **BASE["train"]}
    configure(train=train, generate={}, **{name: NEEDED.get(name, {})})
    for block in ("train", "generate", name):
        line = (configure.folder / f"{block}.sh").read_text()
        assert line.count("--user-dir") == line.count("--user-dir my_layers") == 1
        assert line.endswith("--user-dir my_layers") or name in NEEDED  # it comes last
    assert configure.bash('echo "${measures[*]}"') == name
    command = (configure.folder / f"{name}.sh").read_text()
    assert command.startswith(find_measure(name).command(name))
    tree = load_tree(configure.file, ["user_dir=null"])
    check_measures(validate(tree), tree)
    if name in NEEDED:  # without a required option
        option, tree.values[name] = next(iter(NEEDED[name])), {}
        with pytest.raises(ConfigurationError, match=rf"conf\.yaml:\d+: {name}: .*\b{option}\b"):
            check_measures(validate(tree), tree)


@pytest.mark.parametrize(
    ("words", "block", "key"),
    [
        ("", {}, ""),
        ("--processes 3", {}, "processes 3"),
        ("--nodes 2 --processes=4 --rendezvous a:1", {}, "processes 8"),
        ("", {"processes": 2}, "processes 2"),
        ("--processes 2", {"effective_tokens": 1200}, "1200"),
        ("--processes 2 --effective-tokens 600", {"effective_tokens": 1200}, "1200\n600"),
    ],
)
def test_keys_of_finished_runs_stay_the_same(configure, words, block, key):
    """Users' finished training runs have these keys: another text would train them again."""
    configure(f"--launch={words}", launch=block)
    train = yaml.safe_dump(BASE["train"]).rstrip()
    assert configure.bash('echo "$training_key"') == f"{train}\n{key}".rstrip()
    launch = configure.folder / "launch.sh"
    assert launch.exists() == bool(key)
    if words and block:  # the user's options win
        assert ("1200" in launch.read_text()) == ("--effective-tokens" not in words)
    other = configure.bash('echo "$other_nodes"')
    assert bool(other) == ("--nodes" in words)


def test_a_changed_layer_of_the_user_is_trained_again(configure, tmp_path):
    def key_with(name: str, text: str) -> str:
        (tmp_path / "layers" / name).write_text(text)
        files_digest.cache_clear()  # as in another process
        configure(train=BASE["train"] | {"user_dir": str(tmp_path / "layers")})
        return configure.bash('echo "$training_key"')

    (tmp_path / "layers").mkdir()
    keys = [key_with("__init__.py", f"SCALE = {scale}\n") for scale in (1, 2)]
    assert keys[0] != keys[1] == key_with("notes.txt", "what the scale does")


STREAMS = {"task": "bptt_language_modeling", "batch_size": 12, "distributed_world_size": 1}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("", ""),
        ("--processes 3", ""),  # of the same streams: the same training run
        ("--processes 4 --effective-streams 12", ""),
        ("--processes 4 --effective-streams 8", "streams 8"),
    ],
)
def test_launched_processes_share_the_streams_of_one(configure, words, key):
    train = {"arch": "awd_lstm_lm_mos", **STREAMS}
    configure(f"--launch={words}", train=train, finetune={"lr": 3})
    assert configure.bash('echo "$training_key"') == f"{yaml.safe_dump(train)}{key}".rstrip()
    for block in ("train", "finetune"):
        line = (configure.folder / f"{block}.sh").read_text()
        assert ("--distributed-world-size" in line) == (not words)


STREAMED = {"train": {"arch": "awd_lstm_lm_mos", **STREAMS}}


@pytest.mark.parametrize(
    ("words", "blocks", "message"),
    [
        ("--processes 13", STREAMED, "13 processes cannot have one each; use at most 12 processes"),
        ("--processes 2 --effective-tokens 9", STREAMED, "-tokens and --effective-streams exclude"),
        ("--processes 2", STREAMED | {"finetune": {"batch_size": 4}},
         "finetune.batch_size: a finetuning run under a laun"),
        ("--processes 2 -- fairseq-train --arch x", {}, "give options alone; the recipe adds the"),
        ("--processes '2", {}, "--launch --processes '2: No closing quotation"),
        ("--gpus-per-node 2 --slurm {folder}/job.sh --account", {}, "No such option: --user-dir"),
        ("--processes 2 --log-dir logs", {}, "--log-dir: the recipe has logs in .*/train/logs; l"),
    ],
)  # fmt: skip
def test_what_would_start_hide_or_change_a_launch_is_refused(configure, words, blocks, message):
    """A rehearsal starts nothing, and writes no script for SLURM, whatever --launch has."""
    with pytest.raises(AssertionError, match=message):
        configure(f"--launch={words.format(folder=configure.file.parent)}", **blocks)
    assert {path.name for path in configure.file.parent.iterdir()} == {"conf.yaml", "config.yaml"}


def test_words_of_a_launch_may_have_quotes(configure):
    configure("--launch=--gpus-per-node 2 --slurm 'my job.sh' --sbatch '--comment=a b'")
    line = (configure.folder / "launch.sh").read_text()
    assert "--slurm 'my job.sh'" in line and "'--comment=a b'" in line
