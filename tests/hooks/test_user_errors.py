"""What a user can mend ends with one line and exit code 2; a defect keeps its traceback.

tests/models/test_console_scripts.py has the same for whole commands.
"""

import argparse

import pytest
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils
from omegaconf import OmegaConf

import highrank_plugins.hooks.user_errors  # noqa: F401  (importing it applies the repair)
from highrank_plugins.common.user_error import UserError

CFG = OmegaConf.structured(FairseqConfig())


def raises(error):
    def main(cfg):
        raise error

    return main


def test_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train"])
    with pytest.raises(SystemExit) as ended:
        utils.call_main(CFG, raises(UserError("--head mos: too few")))
    assert ended.value.code == 2
    assert capsys.readouterr().err == "fairseq-train: error: --head mos: too few\n"


def test_a_program_that_calls_fairseq_gets_the_exception():
    with pytest.raises(UserError, match="too few"):
        utils.call_main(CFG, raises(UserError("--head mos: too few")))


def test_a_missing_checkpoint(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-generate"])
    with pytest.raises(SystemExit):
        utils.call_main(CFG, raises(OSError("Model file not found: a.pt")))
    assert capsys.readouterr().err.endswith("error: --path: no such file: a.pt\n")


def test_a_file_that_cannot_be_read(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-generate"])
    with pytest.raises(SystemExit) as ended:
        utils.call_main(CFG, raises(PermissionError(13, "Permission denied", "data/dict.txt")))
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("error: data/dict.txt: permission denied\n")


def test_a_defect_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train"])
    with pytest.raises(ValueError, match="a defect"):
        utils.call_main(CFG, raises(ValueError("a defect")))


def test_an_assertion_about_options(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train"])
    theirs = {"__name__": "fairseq_cli.train"}
    exec("def main(cfg):\n    assert cfg is None, 'Must specify batch size'", theirs)
    with pytest.raises(SystemExit) as ended:
        utils.call_main(CFG, theirs["main"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "fairseq-train: error: Must specify batch size\n"
    with pytest.raises(AssertionError, match="ours"):
        utils.call_main(CFG, raises(AssertionError("ours")))


def test_while_options_are_read(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fairseq_cli/train.py"])
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(
            argparse.ArgumentParser(), input_args=[], modify_parser=raises(UserError("no"))
        )
    assert ended.value.code == 2 and capsys.readouterr().err.endswith("error: no\n")


def test_a_training_without_an_architecture():
    parser = options.get_training_parser()
    with pytest.raises(UserError, match="--arch is missing"):
        options.parse_args_and_arch(parser, input_args=["data"])


def test_a_validation_without_a_task():
    parser = options.get_validation_parser()
    with pytest.raises(UserError, match="--task is missing: add that of the training"):
        options.parse_args_and_arch(parser, ["data", "--path", "model.pt"])


@pytest.mark.parametrize("option", ["--dropout", "--clip-norm"])
@pytest.mark.parametrize("known", [False, True])
def test_an_option_that_is_not_a_number_is_refused(option, known):
    parser, words = options.get_training_parser(), ["data", "--arch", "transformer", option, "nan"]
    with pytest.raises(UserError, match=f"^{option} nan: give a number"):
        options.parse_args_and_arch(parser, input_args=words, parse_known=known)
