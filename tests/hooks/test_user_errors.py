"""What a user can mend ends with one line and exit code 2; a defect keeps its traceback.

tests/models/test_commands.py has the same for whole commands. A command whose output nobody reads
ends silently.
"""

import io
import logging
import os
import sys
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils
from omegaconf import OmegaConf

import highrank_plugins
from highrank_plugins.common.names import flag
from highrank_plugins.common.options import WrongNumbers
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import head_names, pointwise_names, vocabulary_names
from highrank_plugins.hooks.commands import print_uncaught  # applies all repairs
from highrank_plugins.models import head_options

CFG = OmegaConf.structured(FairseqConfig())
LED = "an option or the data lead to it (LOGLEVEL=DEBUG shows where)"
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
        (raises(UserError("a.en:1:1: NUL\na.en:2:1: NUL")), "a.en:1:1: NUL\na.en:2:1: NUL"),
        (raises(OSError("Model file not found: a.pt")), "--path: no such file: a.pt"),
        (raises(PermissionError(13, "Permission denied", "data/dict.txt")),
         "data/dict.txt: permission denied"),
        (THEIRS["refuse"], "Must specify batch size"),
        (raises(ImportError("Please install fastBPE with: pip install fastBPE")),
         f"Please install fastBPE with: pip install fastBPE; {LED}"),
        (raises(LookupError("\n*\n  Resource punkt not found.\n >>> nltk.download('punkt')\n")),
         f"LookupError: * Resource punkt not found. >>> nltk.download('punkt'); {LED}"),
    ],
)  # fmt: skip
def test_a_mistake_ends_with_one_line(main, said, monkeypatch, capfd):
    for program in "/usr/bin/fairseq-train", "fairseq_cli/train.py":
        shown = ended(main, [program], monkeypatch, capfd)
        assert shown == f"{program.rpartition('/')[2]}: error: {said}\n"


def test_a_defect_keeps_its_traceback(monkeypatch):
    ours = {"__name__": "highrank_plugins.toy"}
    exec("def main(cfg):\n    raise ValueError('a defect')", ours)

    def train_step(cfg):  # an error of an update, whose options have worked
        return {}["word"]

    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.argv", ["/usr/bin/fairseq-train", "--word", "word"])
    for main in ours["main"], train_step:
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


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--wings 7", "if cfg.wings > 2:\n        cfg.birds[1]",
         "--wings 7: KeyError: 1; correct the option, or leave it out"),
        ("--bird=Emu", "raise ValueError('no bird Emu.')",
         "--bird Emu: no bird Emu; correct the option, or leave it out"),
        ("--optimizer sgd --fast", "cfg.optimizer and {}[0]",
         f"KeyError: 0; {LED}"),
    ],
)  # fmt: skip
def test_an_error_names_the_option_that_led_to_it(words, code, said, tmp_path, monkeypatch, capfd):
    file = tmp_path / "code.py"
    file.write_text(f"def main(cfg):\n    {code}\n")
    names = {"__name__": "fairseq.code"}
    exec(compile(file.read_text(), file, "exec"), names)
    cfg = SimpleNamespace(wings=7, birds={}, optimizer="sgd")
    shown = ended(
        lambda _: names["main"](cfg), ["fairseq-train", *words.split()], monkeypatch, capfd
    )
    assert shown == f"fairseq-train: error: {said}\n"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_no_option_of_any_layer_takes_a_number_that_is_not_finite(number):
    highrank_plugins.register()
    rates, tried = head_options.rate_options(), set()
    layers = [(name, "identity", "plain") for name in head_names()]
    layers += [("softmax", name, "plain") for name in pointwise_names()]
    for chosen in layers + [("softmax", "identity", name) for name in vocabulary_names()]:
        names = {name for name, own in rates.items() if own in chosen} | {"head_z_loss"}
        words = ["--arch transformer_mos"]
        for axis, name in zip(head_options.AXES, chosen, strict=True):
            defaults = head_options.Choice(axis, name).defaults()
            names |= {name for name, default in defaults.items() if type(default) is float}
            words += [flag(axis.option), name]
        words += [f"{flag(name)}={number}" for name in names]
        with pytest.raises(WrongNumbers) as refused:
            parse("training", " ".join(words))
        assert refused.value.problems == dict.fromkeys(names, f"{number}: expected a finite number")
        tried |= names
    assert {"head_context_scale", "head_gss_c", "head_plif_lr", "head_codebook_ratio"} <= tried


STOCK = "--arch transformer --optimizer adam --criterion label_smoothed_cross_entropy"


def parse(command: str, words: str):
    """Parse a command line; return the parser, which then has the options of all parts."""
    parser = getattr(options, f"get_{command}_parser")()
    options.parse_args_and_arch(parser, ["data", *words.split()])
    return parser


@pytest.mark.parametrize("number", ["nan", "-inf"])
def test_no_option_of_fairseq_takes_a_number_that_is_not_finite(number):
    names = {a.dest for a in parse("training", STOCK)._actions if a.type is float}
    assert {"dropout", "label_smoothing", "clip_norm"} <= names
    with pytest.raises(WrongNumbers) as refused:
        parse("training", " ".join([STOCK, *(f"{flag(name)}={number}" for name in names)]))
    assert names <= refused.value.problems.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lr -1", "--lr must be at least 0, got -1"),
        ("--lr 0.1,1e999", "--lr inf: expected a finite number"),
        *((f"--optimizer adam --adam-betas {betas}",
           "--adam-betas takes two numbers, such as '(0.9, 0.98)'")
          for betas in ("(0.9,0.98,0.99)", "()", "(0.9,'a',0.98)", "0.9")),
        ("--optimizer adafactor --adafactor-eps (1e-3,)",
         "--adafactor-eps takes two numbers, such as '(1e-30, 1e-3)'"),
        ("--lr-scheduler cosine --lr-period-updates 0",
         "--lr-period-updates must be greater than 0, or -1 for one period, with --lr-scheduler "
         "cosine, got 0"),
        ("--lr-scheduler cosine --max-update 5 --warmup-updates 5",
         "--warmup-updates must be less than --max-update with --lr-scheduler cosine, got 5"),
        ("--lr-scheduler cosine --t-mult 0.5", "--t-mult must be at least 1, got 0.5"),
        ("--lr-scheduler triangular --max-lr 1 --lr-period-updates 1",
         "--lr-period-updates must be at least 2 with --lr-scheduler triangular, got 1"),
        ("--lr-scheduler tri_stage", "--decay-steps must be at least 1 with --lr-scheduler "
         "tri_stage, got 0"),
        *((f"--dropout {value}", f"--dropout must lie in [0, 1), got {value}")
          for value in (2, 1, -0.1)),
        ("--max-tokens-valid -3", "--max-tokens-valid must be at least 1, got -3"),
        ("--update-freq 2,0", "--update-freq must be at least 1, got 0"),
        ("--seed -1", "--seed must lie in [0, 4.29497e+09], got -1"),
        ("--num-workers -2", "--num-workers must lie in [0, 1024], got -2"),
        ("--ema-decay 1.5", "--ema-decay must lie in [0, 1], got 1.5"),
        ("--distributed-rank 1", "--distributed-rank must lie in [0, 1), got 1"),
        ("--optimizer-overrides -1",
         "--optimizer-overrides takes a dictionary, such as {'dropout': 0.1}, got -1"),
        ("--optimizer adam --adam-betas (0.9,1.98)", "--adam-betas must lie in [0, 1), got 1.98"),
        ("--lr-scheduler inverse_sqrt --warmup-updates 0",
         "--warmup-updates must be at least 1 with --lr-scheduler inverse_sqrt, got 0"),
        ("--optimizer adam --adam-betas (nan,0.9)", "--adam-betas nan: expected a finite number"),
        ("--lr -1 --max-update -5",
         "--max-update must be at least 0, got -5; --lr must be at least 0, got -1"),
    ],
)  # fmt: skip
def test_an_option_out_of_range_is_refused(words, message):
    with pytest.raises(UserError) as refused:
        parse("training", f"--arch transformer {words}")
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        *(("generation", f"--path model.pt {words}", f"{words.split()[0]} must ")
          for words in ("--beam 0", "--temperature 0", "--sampling-topp 2", "--nbest 0",
                        "--nbest 6")),
        ("training", "", "--arch is missing"),
        ("validation", "--path model.pt", "--task is missing: add the task of the training run"),
    ],
)  # fmt: skip
def test_an_option_of_a_command_is_missing_or_out_of_range(command, words, message):
    with pytest.raises(UserError, match=f"^{message}"):
        parse(command, words)


def test_a_hydra_option_out_of_range_is_refused():
    for change in {"optimization": {"lr": [-1.0]}}, {"dataset": {"batch_size": 0}}:
        with pytest.raises(UserError, match=r"^--(lr|batch-size) must be at least"):
            utils.call_main(OmegaConf.merge(CFG, change), raises(AssertionError("it ran")))


def test_the_defaults_of_all_commands_are_within_their_ranges():
    highrank_plugins.register()
    for command, words in (
        ("training", "--arch transformer_mixtape --clip-norm inf"),
        ("training", "--arch awd_lstm_lm_mos_ptb --task bptt_language_modeling "
                     "--optimizer nt_asgd"),
        *((name, "--path model.pt")
          for name in ("generation", "interactive_generation", "eval_lm")),
        ("validation", "--path model.pt --task translation"),
    ):  # fmt: skip
        parse(command, words)


@contextmanager
def piped(monkeypatch, program="/usr/bin/fairseq-train"):
    """Make standard output a pipe, and keep standard error; yields the two ends of the pipe."""
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, "rb") as read,
        os.fdopen(writer, "w") as write,
        monkeypatch.context() as m,
    ):
        m.setattr("sys.stdout", write)
        m.setattr("sys.stderr", io.StringIO())
        m.setattr("sys.argv", [program])
        yield read, write
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # closes without an error


@pytest.mark.parametrize("flush", [False, True])
def test_a_command_without_a_reader_ends_silently(flush, monkeypatch):
    with piped(monkeypatch, "/usr/bin/fairseq-generate") as (reader, writer):
        reader.close()
        with pytest.raises(BrokenPipeError) as error:
            utils.call_main(CFG, lambda cfg: print("a line", flush=flush))
        with pytest.raises(SystemExit) as ended:
            print_uncaught(error.type, error.value, error.tb)
        assert (ended.value.code, sys.stderr.getvalue()) == (1, "")
        writer.flush()  # as Python does at its end


def test_another_broken_pipe_is_reported(monkeypatch, capfd):
    error = BrokenPipeError(32, "Broken pipe")
    with piped(monkeypatch, "/usr/bin/fairseq-generate"):
        with pytest.raises(SystemExit) as ended:
            print_uncaught(type(error), error, None)
        assert ended.value.code == 2
    assert capfd.readouterr().err == "fairseq-generate: error: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    ("program", "ends"),
    [("fairseq-eval-lm", True), ("fairseq-train", False), ("fairseq_cli/train.py", False)],
)
def test_a_log_without_a_reader_ends_an_evaluation_but_no_training(program, ends, monkeypatch):
    logger = logging.Logger("test")
    with piped(monkeypatch, f"/usr/bin/{program}") as (reader, writer):
        logger.addHandler(logging.StreamHandler(writer))
        reader.close()
        with pytest.raises(BrokenPipeError) if ends else nullcontext():
            logger.info("a line")
        assert sys.stderr.getvalue() == ""
        logger.info("%d", "no number")  # another error
        assert "Logging error" in sys.stderr.getvalue()


def test_a_command_without_output_ends_without_an_error(monkeypatch):
    with monkeypatch.context() as m:
        m.setattr("sys.argv", ["/usr/bin/fairseq-train"])
        m.setattr("sys.stdout", None)
        assert utils.call_main(CFG, lambda cfg: None) is None
