"""What a user can mend ends with one line and exit code 2; a defect keeps its traceback.

tests/models/test_console_scripts.py has the same for whole commands.
"""

import argparse
import io
import sys

import pytest
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils
from omegaconf import OmegaConf

from highrank_plugins.common.names import flag
from highrank_plugins.common.option_ranges import WrongNumbers
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import head_names, pointwise_names
from highrank_plugins.hooks.user_errors import (  # applies all repairs
    import_user_module,
    print_uncaught,
)

CFG = OmegaConf.structured(FairseqConfig())


def raises(error):
    def main(cfg):
        raise error

    return main


def test_a_mistake_ends_with_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train"])
    with pytest.raises(SystemExit) as ended:
        utils.call_main(CFG, raises(UserError("--head mos: too few")))
    assert ended.value.code == 2
    assert capsys.readouterr().err == "fairseq-train: error: --head mos: too few\n"


def test_a_program_that_calls_fairseq_gets_the_exception():
    with pytest.raises(UserError, match="too few"):
        utils.call_main(CFG, raises(UserError("--head mos: too few")))


def test_a_missing_checkpoint_ends_with_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-generate"])
    with pytest.raises(SystemExit):
        utils.call_main(CFG, raises(OSError("Model file not found: a.pt")))
    assert capsys.readouterr().err.endswith("error: --path: no such file: a.pt\n")


def test_a_file_that_cannot_be_read_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-generate"])
    with pytest.raises(SystemExit) as ended:
        utils.call_main(CFG, raises(PermissionError(13, "Permission denied", "data/dict.txt")))
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("error: data/dict.txt: permission denied\n")


def test_a_defect_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train"])
    with pytest.raises(ValueError, match="a defect"):
        utils.call_main(CFG, raises(ValueError("a defect")))


def test_an_error_that_nothing_catches_ends_with_one_line(monkeypatch, capfd):
    # as torch.distributed does once processes have met
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train"])
    with pytest.raises(SystemExit) as ended:
        print_uncaught(UserError, UserError("layer 'lm': choose another name"), None)
    assert ended.value.code == 2
    shown = capfd.readouterr().err
    assert shown == "fairseq-train: error: layer 'lm': choose another name\n"
    print_uncaught(ValueError, ValueError("a defect"), None)
    monkeypatch.setattr("sys.argv", ["train.py"])
    print_uncaught(UserError, UserError("in a program"), None)
    shown = sys.stderr.getvalue()
    assert "ValueError: a defect\n" in shown and "UserError: in a program\n" in shown


def test_a_missing_user_dir_is_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"^--user-dir nowhere: no such folder; "):
        import_user_module(argparse.Namespace(user_dir="nowhere"))
    package = tmp_path / "package_that_reads"
    package.mkdir()
    (package / "__init__.py").write_text("open('no/such/file')")
    monkeypatch.setattr("sys.path", [*sys.path])
    with pytest.raises(FileNotFoundError, match="no/such/file"):
        import_user_module(argparse.Namespace(user_dir=str(package)))


def test_an_assertion_about_options_ends_with_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train"])
    theirs = {"__name__": "fairseq_cli.train"}
    exec("def main(cfg):\n    assert cfg is None, 'Must specify batch size'", theirs)
    with pytest.raises(SystemExit) as ended:
        utils.call_main(CFG, theirs["main"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "fairseq-train: error: Must specify batch size\n"
    with pytest.raises(AssertionError, match="ours"):
        utils.call_main(CFG, raises(AssertionError("ours")))


def test_a_mistake_in_an_option_ends_with_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fairseq_cli/train.py"])
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(
            argparse.ArgumentParser(), input_args=[], modify_parser=raises(UserError("no"))
        )
    assert ended.value.code == 2 and capsys.readouterr().err.endswith("error: no\n")


def test_training_needs_an_architecture():
    parser = options.get_training_parser()
    with pytest.raises(UserError, match="--arch is missing"):
        options.parse_args_and_arch(parser, input_args=["data"])


def test_validation_needs_a_task():
    parser = options.get_validation_parser()
    with pytest.raises(UserError, match="--task is missing: add the task of the training run"):
        options.parse_args_and_arch(parser, ["data", "--path", "model.pt"])


@pytest.mark.parametrize("option", ["--dropout", "--clip-norm"])
@pytest.mark.parametrize("known", [False, True])
def test_an_option_that_is_not_a_number_is_refused(option, known):
    parser, words = options.get_training_parser(), ["data", "--arch", "transformer", option, "nan"]
    with pytest.raises(UserError, match=f"^{option} nan: expected a finite number"):
        options.parse_args_and_arch(parser, input_args=words, parse_known=known)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_no_option_of_any_layer_takes_a_number_that_is_not_finite(number):
    import highrank_plugins
    from highrank_plugins.models import head_options

    highrank_plugins.register()
    layers = [(name, "identity") for name in head_names()]
    layers += [("softmax", name) for name in pointwise_names()]
    tried = set()
    for head, pointwise in layers:
        defaults = head_options.option_defaults(head, pointwise)
        names = {name for name, default in defaults.items() if type(default) is float}
        names |= {name for name, own in head_options.rate_options().items() if own == pointwise}
        names.add("head_z_loss")
        words = ["--head", head, "--head-pointwise", pointwise]
        words += [f"{flag(name)}={number}" for name in names]
        with pytest.raises(WrongNumbers) as refused:
            options.parse_args_and_arch(
                options.get_training_parser(), ["data", "--arch", "transformer_mos", *words]
            )
        assert refused.value.problems == dict.fromkeys(names, f"{number}: expected a finite number")
        tried |= names
    assert {"head_context_scale", "head_gss_c", "head_plif_lr", "head_softcap_cap"} <= tried


STOCK = "--arch transformer --optimizer adam --criterion label_smoothed_cross_entropy".split()


@pytest.mark.parametrize("number", ["nan", "-inf"])
def test_no_option_of_fairseq_takes_a_number_that_is_not_finite(number):
    parser = options.get_training_parser()
    options.parse_args_and_arch(parser, ["data", *STOCK])  # it has the options of all parts now
    names = {action.dest for action in parser._actions if action.type is float}
    assert {"dropout", "label_smoothing", "clip_norm"} <= names
    words = [f"{flag(name)}={number}" for name in names]
    with pytest.raises(WrongNumbers) as refused:
        options.parse_args_and_arch(options.get_training_parser(), ["data", *STOCK, *words])
    assert names <= refused.value.problems.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lr -1", "--lr must be at least 0, got -1"),
        ("--lr 0.1,1e999", "--lr inf: expected a finite number"),
        ("--dropout 2", "--dropout must lie in [0, 1), got 2"),
        ("--attention-dropout -0.1", "--attention-dropout must lie in [0, 1), got -0.1"),
        ("--activation-dropout 1", "--activation-dropout must lie in [0, 1), got 1"),
        ("--decoder-layerdrop 7", "--decoder-layerdrop must lie in [0, 1), got 7"),
        ("--clip-norm -1", "--clip-norm must be at least 0, got -1"),
        ("--max-update -5", "--max-update must be at least 0, got -5"),
        ("--max-epoch -5", "--max-epoch must be at least 0, got -5"),
        ("--batch-size 0", "--batch-size must be at least 1, got 0"),
        ("--max-tokens 0", "--max-tokens must be at least 1, got 0"),
        ("--max-tokens-valid -3", "--max-tokens-valid must be at least 1, got -3"),
        ("--update-freq 2,0", "--update-freq must be at least 1, got 0"),
        ("--save-interval 0", "--save-interval must be at least 1, got 0"),
        ("--log-interval 0", "--log-interval must be at least 1, got 0"),
        ("--seed -1", "--seed must lie in [0, 4.29497e+09], got -1"),
        ("--num-workers -2", "--num-workers must be at least 0, got -2"),
        ("--encoder-embed-dim 0", "--encoder-embed-dim must be at least 1, got 0"),
        ("--criterion label_smoothed_cross_entropy --label-smoothing 2",
         "--label-smoothing must lie in [0, 1), got 2"),
        ("--lr-scheduler inverse_sqrt --warmup-updates -4",
         "--warmup-updates must be at least 0, got -4"),
        ("--optimizer adam --adam-betas (0.9,1.98)", "--adam-betas must lie in [0, 1), got 1.98"),
        ("--optimizer adam --adam-betas 0.9",
         "--adam-betas takes two numbers, such as '(0.9, 0.98)'"),
        ("--lr-scheduler inverse_sqrt --warmup-updates 0",
         "--warmup-updates must be at least 1 with --lr-scheduler inverse_sqrt, got 0"),
        ("--optimizer adam --adam-betas (nan,0.9)", "--adam-betas nan: expected a finite number"),
        ("--optimizer adam --weight-decay -1", "--weight-decay must be at least 0, got -1"),
        ("--optimizer sgd --momentum 1.5", "--momentum must lie in [0, 1), got 1.5"),
        ("--lr -1 --max-update -5",
         "--max-update must be at least 0, got -5; --lr must be at least 0, got -1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("known", [False, True])
def test_an_option_out_of_range_is_refused(words, message, known):
    parser, line = options.get_training_parser(), ["data", "--arch", "transformer", *words.split()]
    with pytest.raises(UserError) as refused:
        options.parse_args_and_arch(parser, input_args=line, parse_known=known)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "words", ["--beam 0", "--temperature 0", "--sampling-topp 2", "--nbest 0", "--nbest 6"]
)
def test_a_generation_option_out_of_range_is_refused(words):
    with pytest.raises(UserError, match=f"^{words.split()[0]} must "):
        options.parse_args_and_arch(
            options.get_generation_parser(), ["data", "--path", "model.pt", *words.split()]
        )


@pytest.mark.parametrize(
    ("change", "option"),
    [({"optimization": {"lr": [-1.0]}}, "--lr"), ({"dataset": {"batch_size": 0}}, "--batch-size")],
)
def test_a_hydra_option_out_of_range_is_refused(change, option):
    with pytest.raises(UserError, match=f"^{option} must be at least"):
        utils.call_main(OmegaConf.merge(CFG, change), raises(AssertionError("it ran")))


def test_the_defaults_of_all_commands_are_within_their_ranges():
    import highrank_plugins

    highrank_plugins.register()
    for get, words in (
        (options.get_training_parser, ["--arch", "transformer_mixtape", "--clip-norm", "inf"]),
        (options.get_training_parser, ["--arch", "awd_lstm_lm_mos_ptb", "--task",
                                       "bptt_language_modeling", "--optimizer", "nt_asgd"]),
        (options.get_generation_parser, ["--path", "model.pt"]),
        (options.get_interactive_generation_parser, ["--path", "model.pt"]),
        (options.get_eval_lm_parser, ["--path", "model.pt"]),
        (options.get_validation_parser, ["--path", "model.pt", "--task", "translation"]),
    ):  # fmt: skip
        options.parse_args_and_arch(get(), ["data", *words])
