"""What a user can mend ends with one line and exit code 2; a defect keeps its traceback.

test_option_sweep.py has the same for whole commands.
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
from highrank_plugins.common.options import WrongNumbers
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.commands import print_uncaught  # applies all repairs
from tests.compat.conftest import config, transformer

CFG = OmegaConf.structured(FairseqConfig())
THEIRS = {"__name__": "fairseq_cli.train"}
exec("def refuse(cfg):\n    assert cfg is None, 'Must specify batch size'", THEIRS)


def raises(error):
    def main(cfg):
        raise error

    return main


def ended(main, argv, monkeypatch, capfd) -> str:
    """Run a command as Python does; return what it prints, and require exit code 2."""
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setattr("sys.stderr", io.StringIO())  # as torch.distributed does with its hook
    try:
        utils.call_main(CFG, main)
    except Exception as error:  # what Python does with any error
        with pytest.raises(SystemExit) as left:
            print_uncaught(type(error), error, error.__traceback__)
        assert left.value.code == 2
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("main", "said"),
    [
        (raises(UserError("--head mos: too few")), "--head mos: too few"),
        (raises(PermissionError(13, "Permission denied", "data/dict.txt")),
         "data/dict.txt: permission denied"),
        # fairseq-preprocess names the dictionary alone
        (raises(FileExistsError(__file__)),
         f"{__file__} exists: remove it, or give another folder"),
        (THEIRS["refuse"], "Must specify batch size"),
        (raises(ModuleNotFoundError("No module named 'x'", name="x")),
         "No module named 'x': install it, or leave out the option that needs it"),
    ],
)  # fmt: skip
def test_a_mistake_ends_with_one_line(main, said, monkeypatch, capfd):
    for program in "/usr/bin/fairseq-train", "fairseq_cli/train.py":
        shown = ended(main, [program], monkeypatch, capfd)
        assert shown == f"{program.rpartition('/')[2]}: error: {said}\n"


def test_a_defect_keeps_its_traceback(monkeypatch):
    def train_step(cfg):  # an error of an update, whose options have worked
        return {}["word"]

    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train", "--cfg", "word"])
    ours = {"__name__": "highrank_plugins.x"}
    exec("def defect(cfg):\n    raise ValueError('a defect')", ours)
    for main in ours["defect"], train_step:
        with pytest.raises((ValueError, KeyError)) as raised:
            utils.call_main(CFG, main)
        print_uncaught(raised.type, raised.value, raised.tb)
    monkeypatch.setattr("sys.argv", ["train.py"])
    with pytest.raises(UserError, match="in a program") as raised:
        utils.call_main(CFG, raises(UserError("in a program")))
    print_uncaught(raised.type, raised.value, None)
    shown = sys.stderr.getvalue()
    for said in "ValueError: a defect", "KeyError: 'word'":
        assert f"{said}\n" in shown
    assert "UserError: in a program\n" in shown


def test_an_error_names_the_option_of_its_value_or_the_part_of_fairseq(monkeypatch, capfd):
    def within(error):
        exec("def fail(cfg):\n    raise error", names := {"__name__": "fairseq.x", "error": error})
        return names["fail"]

    for words, main, said in (
        ("--bird=emu", raises(KeyError("emu")), "--bird emu: KeyError: 'emu'"),
        ("--flock 1000000000", raises(RuntimeError("can't allocate memory")),
         "--flock 1000000000: can't allocate memory"),
        ("--wings 7", within(IndexError("list index")),
         "an option that fairseq.x reads: IndexError: list index"),
    ):  # fmt: skip
        shown = ended(main, ["fairseq-train", *words.split()], monkeypatch, capfd)
        assert shown == f"fairseq-train: error: {said}; correct the option, or leave it out\n"


def parse(command: str, words: str):
    """Parse a command line; return the parser, which then has the options of all parts."""
    parser = getattr(options, f"get_{command}_parser")()
    options.parse_args_and_arch(parser, ["data", *words.split()])
    return parser


STOCK = "--arch transformer --optimizer adam --criterion label_smoothed_cross_entropy"


def test_no_option_of_fairseq_takes_a_number_that_is_not_finite():
    names = {a.dest for a in parse("training", STOCK)._actions if a.type is float}
    assert {"dropout", "label_smoothing", "clip_norm"} <= names
    with pytest.raises(WrongNumbers) as refused:
        parse("training", " ".join([STOCK, *(f"{flag(name)}=-inf" for name in names)]))
    assert names <= refused.value.problems.keys()
    parse("training", f"{STOCK} --clip-norm inf --stop-time-hours inf")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lr -1", "--lr must be at least 0, got -1"),
        *((f"--arch transformer_{layer} --head-{option} nan", f"--head-{option} nan: expected a ")
          for layer, option in (("plif", "plif-lr"), ("gss", "gss-c"), ("mos", "context-scale"))),
        *((f"--dropout {value}", f"--dropout must lie in [0, 1), got {value}")
          for value in (2, 1, -0.1)),
        ("--batch-size 0", "--batch-size and --batch-size-valid must be at least 1, got 0"),
        ("--optimizer adam --adam-betas 0.9",
         "--adam-betas takes two numbers, such as '(0.9, 0.98)', got 0.9"),
        ("--lr-scheduler cosine --warmup-updates 9 --max-update 9",
         "--warmup-updates must be less than --max-update, got 9"),
        ("--optimizer adam --adam-betas (nan,0.9)", "--adam-betas nan: expected a finite number"),
        ("generation --beam 0", "--beam must"),
    ],
)  # fmt: skip
def test_an_option_is_missing_or_out_of_range(words, message):
    command, _, more = words.partition(" ")
    if command.startswith("--"):
        command, more = "training", f"--arch transformer {words}"
    with pytest.raises(UserError) as refused:
        parse(command, more if command == "training" else f"--path model.pt {more}")
    assert str(refused.value).startswith(message)


def test_a_hydra_option_out_of_range_is_refused():
    for change in {"optimization": {"lr": [-1.0]}}, {"dataset": {"batch_size": 0}}:
        with pytest.raises(UserError, match=r"^--(lr|batch-size) must be at least"):
            utils.call_main(OmegaConf.merge(CFG, change), raises(AssertionError("it ran")))


def refused_by_argparse(capsys, words: list[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        config("training", *words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_mistyped_option_gets_a_suggestion_in_place_of_the_usage(capsys):
    for words, said in (
        ("--encoder-layrs 2", "--encoder-layrs 2; did you mean '--encoder-layers'?"),
        ("--qqqq", "unrecognized arguments: --qqqq"),  # no name is similar
    ):
        message = refused_by_argparse(capsys, ["data", *transformer(), *words.split()])
        assert message.rstrip().endswith(said) and "usage:" not in message


@pytest.mark.parametrize("option", ["--lr", "--update-freq"])
def test_a_value_that_is_not_a_number_is_reported(option, capsys):
    wrong = ["abc", "$rate", "${oc.env:HOME}", "1;", "0.1,a", "(" * 10_000, "__import__('os')"]
    for value in wrong:
        message = refused_by_argparse(capsys, ["data", option, value])
        assert f"argument {option}: expected a number, or several separated by commas (" in message
    args, _ = options.get_training_parser().parse_known_args(["data", "--lr", "1e-3,2"])
    assert args.lr == [1e-3, 2.0]


def test_bf16_does_not_turn_tpu_on():
    for words in "--bf16", "--memory-efficient-bf16", "--bf16 --tpu":
        line = ["data", *transformer(), *words.split(), "--nonsense"]
        parser = options.get_training_parser()
        args, rest = options.parse_args_and_arch(parser, line, parse_known=True)
        assert args.tpu is ("--tpu" in words) and rest == ["--nonsense"]


def test_help_lists_the_options_of_the_architecture(capsys):
    for words in "--arch transformer --help", "--arch transformer -h", "--help":  # without data
        with pytest.raises(SystemExit) as ended:
            config("training", *words.split())
        text = capsys.readouterr().out
        assert ended.value.code == 0 and "--max-tokens" in text
        assert ("--encoder-attention-heads" in text) is ("--arch" in words)
    required = refused_by_argparse(capsys, ["--arch", "transformer"])
    assert "data" in required.splitlines()[-1]
    parser = argparse.ArgumentParser()  # of others
    parser.add_argument("needed")
    with pytest.raises(SystemExit):
        parser.parse_known_args(["--help"])
    assert "needed" in capsys.readouterr().out
