"""Let fairseq's commands explain a user's mistake in one line, and take their options.

Mistakes. What breaks: `--head mos --head-components 0` ends with a traceback of 20 functions. Why:
fairseq prints every error so; hydra prints errors itself. What we do: Python's hook for errors
prints the message alone, with exit code 2: of a `UserError`, and of an error of files, disks or
numbers. So it does with any error of fairseq before the first update, and names the option whose
value the message has, or the module. Other errors may be defects and keep the traceback. Delete
when: fairseq does so.

Options. What breaks: `--bf16` is taken for `--tpu`; `--lr '$rate'` ends in `SyntaxError`; a
mistyped option is answered with 200 lines of usage; `--help` hides the options of the architecture.
Why: fairseq parses twice, and argparse prints help in the first parse, and usage at every error.
What we do: set `tpu` back without torch_xla, say what was expected, add the nearest name, and
ignore `--help` in the first parse. Numbers must lie in their ranges. Delete when: fairseq does so.
"""

import argparse
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakSet

from fairseq import options
from fairseq import utils as fairseq_utils
from fairseq.dataclass import utils as dataclass_utils
from fairseq.distributed import utils
from omegaconf import DictConfig, OmegaConf

import highrank_plugins
from highrank_plugins.common.names import did_you_mean, flag
from highrank_plugins.common.options import check_ranges
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError, explained, has_no_reader, leave, place_in

logger = logging.getLogger(__name__)
os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # lets errors reach Python's hook

_HELP = {"-h", "--help"}
_parsed: WeakSet[argparse.ArgumentParser] = WeakSet()  # fairseq's parsers that have parsed once
DIVERGED = (
    ": the training run has diverged; lower --lr, use --clip-norm or a longer "
    "--warmup-updates, and start again from an earlier checkpoint"
)
# pyarrow no longer has Plasma; without iopath, fairseq ends before it trains, with exit code 0
_PACKAGES = {"use_plasma_view": "plasma", "write_checkpoints_asynchronously": "iopath"}
# start of fairseq's message → what it leaves out
_REMEDIES = {
    "gradients are Nan/Inf": DIVERGED,
    "Size of sample": ", or raise --max-source-positions and --max-target-positions",
    "Unsupported language modeling target": ": leave out --self-target and --past-target",
    "Torch not compiled with CUDA enabled": ": leave out --fp16 and --bf16, which need a GPU",
    "The dataset is empty": ": raise --max-tokens, --max-source-positions or "
    "--max-target-positions, or give longer data",
}


@replaces(options, "parse_args_and_arch")
def parse_args_and_arch(
    stock: Callable, parser: Any, input_args: Any = None, parse_known: bool = False, **kwargs: Any
) -> Any:
    try:
        parsed = stock(parser, input_args, parse_known, **kwargs)
    except (RuntimeError, KeyError) as error:
        if error.args == ():
            raise UserError(
                "--arch is missing: name one, such as --arch transformer_mixtape"
            ) from error
        if error.args == (None,):
            raise UserError(
                "--task is missing: add the task of the training run, such as --task translation"
            ) from error
        raise
    given = parsed[0] if parse_known else parsed
    words = sys.argv[1:] if input_args is None else input_args
    if getattr(given, "bf16", False) and fairseq_utils.xm is None and "--tpu" not in words:
        given.tpu = False
    if getattr(given, "lr", ()) is None:  # --lr-scheduler adds the option to commands without one
        del given.lr
    for name, package in _PACKAGES.items():
        if getattr(given, name, False) and find_spec(package) is None:
            raise UserError(f"{flag(name)} needs {package}, which is not installed; leave it out")
    check_ranges(vars(given))
    return parsed


@replaces(dataclass_utils, "eval_str_list")
def eval_str_list(stock: Callable, text: Any, kind: type = float) -> Any:
    try:
        return stock(text, kind)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise argparse.ArgumentTypeError(
            f"expected a number, or several separated by commas (0.1,0.2), got {str(text)[:60]!r}"
        ) from None


@replaces(argparse.ArgumentParser, "parse_known_args")
def parse_known_args(stock: Callable, parser: Any, args: Any = None, namespace: Any = None) -> Any:
    """Parse as argparse does, but let fairseq's first parse finish when --help is given."""
    words, options = sys.argv[1:] if args is None else list(args), parser._option_string_actions
    is_fairseqs = parser.add_help and "--user-dir" in options
    is_first = is_fairseqs and parser not in _parsed
    if is_fairseqs:
        _parsed.add(parser)
    has_arch = any(word in ("-a", "--arch") or word.startswith("--arch=") for word in words)
    if not is_first or not _HELP & set(words) or ("--arch" in options and not has_arch):
        return stock(parser, args, namespace)
    with ExitStack() as stack:
        for action in parser._actions:
            stack.callback(setattr, action, "required", action.required)
            action.required = False
        return stock(parser, [word for word in words if word not in _HELP], namespace)


@replaces(argparse.ArgumentParser, "error")
def error(stock: Callable, parser: Any, message: str) -> Any:
    """End as argparse does; a parser of fairseq's says in one line what was probably meant."""
    actions, meant = parser._option_string_actions, ""
    if "--user-dir" not in actions:
        return stock(parser, message)
    if message.startswith("unrecognized arguments:"):
        words = re.findall(r"--[\w-]+", message)
        meant = "".join(did_you_mean(word, list(actions)) for word in words)
    elif found := re.match(r"argument (--[\w-]+).*?: invalid choice: '([^']*)'", message):
        meant = did_you_mean(found[2], list(actions[found[1]].choices or ()))
    head, sep, choices = message.partition(" (choose from ")
    if sep and choices.count(",") > 30:  # too long to read
        message = head
    return parser.exit(2, f"{parser.prog}: error: {message}{meant}\n")


def is_command() -> bool:
    """Whether this process is one of fairseq's commands, not a program that calls fairseq."""
    program = Path(sys.argv[0])
    return program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"


@replaces(utils, "call_main")
def call_main(stock: Callable, cfg: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a command; fairseq-hydra-train has not read its options by `parse_args_and_arch`."""
    groups = OmegaConf.to_container(cfg).values() if isinstance(cfg, DictConfig) else ()
    for group in groups:
        if isinstance(group, dict):
            check_ranges(group)
    return stock(cfg, *args, **kwargs)


@replaces(sys, "excepthook")
def print_uncaught(stock: Callable, kind: Any, error: Any, trace: Any) -> None:
    """Print an error that nothing has caught: a user's mistake in one line, with its place."""
    told = isinstance(error, Exception) and is_command()
    if told and isinstance(error, BrokenPipeError) and has_no_reader():
        leave(1)
    imported = getattr(fairseq_utils.import_user_module, "memo", set())
    own = map(Path, imported - set(highrank_plugins.__path__))
    place = "".join(place_in(folder, error) for folder in own) if told else ""
    message = _message_of(error, place) if told else None
    if message is None:
        stock(kind, error, trace)
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    # torch.distributed lets hooks write into a buffer, which is lost when they exit
    print(f"{Path(sys.argv[0]).name}: error: {place}{message}", file=sys.__stderr__)
    sys.exit(2)


def _message_of(error: Exception, place: str) -> str | None:
    """Return what an error tells a user; None: it may be a defect, and keeps its traceback.

    `place` is where a user's own code has failed, or "".
    """
    text = explained(error)
    for start, remedy in _REMEDIES.items():
        if text.startswith(start):
            return _reason_of(error) + remedy
    of_import = isinstance(error, ImportError) and str(error.name).partition(".")[0]
    if of_import and of_import not in ("highrank_plugins", "fairseq", "fairseq_cli"):
        return f"{_reason_of(error)}: install it, or leave out the option that needs it"
    one_line = isinstance(error, OSError | FloatingPointError) and "\n" not in text
    of_worker = "Traceback (most recent call last)" in text  # of a process that loads data
    if one_line or (isinstance(error, UserError) and not of_worker):
        return text
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_globals["__name__"] for frame in frames]
    known = ("fairseq.", "fairseq_cli.", "highrank_plugins.")
    part = next((name for name in reversed(names) if name.startswith(known)), "")
    is_fairseqs = part.startswith("fairseq") and not place
    if is_fairseqs and ((isinstance(error, AssertionError) and text) or re.search(r"\s--\w", text)):
        return _reason_of(error)
    # the options of a run that trains have worked
    is_training = any(
        frame.f_code.co_name == "train_step"
        or getattr(frame.f_locals.get("trainer"), "has_stepped", False)
        for frame in frames
    )
    option = " or ".join(_blamed(error, sys.argv)) or f"an option that {part} reads"
    if is_training or not (is_fairseqs or option.startswith("-")):
        return None
    logger.debug("%s", error, exc_info=error)
    return f"{option}: {_reason_of(error)}; correct the option, or leave it out"


def _blamed(error: BaseException, words: Sequence[str]) -> list[str]:
    """Return the options whose values an error has in its message; of memory, the large ones."""
    pairs = zip(words, [*words[1:], "-"], strict=True)
    given = [word if "=" in word else f"{word}={after}" for word, after in pairs if word[:1] == "-"]
    values = {one.replace("=", " ", 1): _plain(one.partition("=")[2]) for one in given}
    message = _plain(str(error))
    said = [option for option, value in values.items() if len(value) > 2 and value in message]
    large = [option for option, value in values.items() if value.isdigit() and int(value) > 10**5]
    return said or (large if "memory" in message else [])


def _plain(text: str) -> str:
    """Return a text in small letters, for names of classes are written in another way."""
    return text.lower().replace("_", "").replace("-", "")


def _reason_of(error: BaseException) -> str:
    """Return an error in one short line, with its kind unless its message is a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # an error of a process that loads data ends with the original one
    text = lines[-1] if "Traceback (most recent call last)" in str(error) else " ".join(lines)
    text = f"{text[:300]}…" if len(text) > 300 else text.rstrip(".")
    is_sentence = " " in text and not isinstance(error, LookupError | AttributeError | TypeError)
    return text if is_sentence else f"{type(error).__name__}: {text}"
