"""A user's mistake ends in a traceback, where one line and exit code 2 would do.

What breaks: `--head mos --head-components 0` ends with a traceback of 20 functions. Its last line
says what to change, and few people read that far.
Why: fairseq prints every error so, and leaves with exit code 1.
What we do: in fairseq's commands, print the message alone, as `argparse` does for an unknown
option. This concerns a `UserError`, an error of files and disks (`OSError`) or of numbers
(`FloatingPointError`), and an assertion of fairseq about options. Other errors keep their
traceback: they may be defects. A program that calls fairseq's functions gets the exception.
`--user-dir` may register a layer that we refuse, before fairseq calls any function that we replace.
So a hook of Python's prints a `UserError` that nothing has caught.
Delete when: fairseq ends so for a `ValueError` of a plug-in.
"""

import logging
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TextIO

from fairseq import options
from fairseq import utils as fairseq_utils
from fairseq.distributed import utils
from fairseq_cli import generate, preprocess
from omegaconf import DictConfig, OmegaConf

import highrank_plugins.hooks.scored_samples  # its errors must pass through ours
from highrank_plugins.common.blame import blamed, options_of, reason_of
from highrank_plugins.common.closed_output import has_no_reader, leave
from highrank_plugins.common.option_ranges import check_ranges
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError, explained, place_in

logger = logging.getLogger(__name__)


@replaces(options, "parse_args_and_arch")
def parse_args_and_arch(stock, *args, **kwargs):
    """Return the parsed options, with what the architecture sets."""
    return _in_one_line(_parse, stock, *args, **kwargs)


def _parse(stock, *args, **kwargs):
    """Return the parsed options.

    Raises:
        UserError: --arch is missing, where fairseq raises a RuntimeError that says nothing, or the
            --task of fairseq-validate, which has no default. Or a number is outside of its range.
    """
    try:
        parsed = stock(*args, **kwargs)
    except RuntimeError as error:
        if error.args:
            raise
        raise UserError(
            "--arch is missing: name one, such as --arch transformer_mixtape"
        ) from error
    except KeyError as error:
        if error.args != (None,):
            raise
        raise UserError(
            "--task is missing: add the task of the training run, such as --task translation"
        ) from error
    given = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(given, "lr", ()) is None:  # --lr-scheduler adds the option to commands without one
        del given.lr
    if getattr(given, "use_plasma_view", False):
        raise UserError("--use-plasma-view needs Plasma, which pyarrow no longer has; leave it out")
    check_ranges(vars(given))
    return parsed


@replaces(utils, "call_main")
def call_main(stock, *args, **kwargs):
    """Run a command, in each of its processes."""
    return _in_one_line(_run_checked, stock, *args, **kwargs)


def _run_checked(stock, cfg, *args, **kwargs):
    """Run a command; fairseq-hydra-train has not read its options by `parse_args_and_arch`."""
    if isinstance(cfg, DictConfig):
        for group in OmegaConf.to_container(cfg).values():
            if isinstance(group, dict):
                check_ranges(group)
    return stock(cfg, *args, **kwargs)


@replaces(generate, "main")
def run_generation(stock, *args, **kwargs):
    """Run fairseq-generate, which does not use `call_main`."""
    return _in_one_line(stock, *args, **kwargs)


@replaces(preprocess, "main")
def run_preprocessing(stock, *args, **kwargs):
    """Run fairseq-preprocess, which does not use `call_main` either."""
    return _in_one_line(stock, *args, **kwargs)


@replaces(fairseq_utils, "import_user_module")
def import_user_module(stock, args):
    """Import the package of --user-dir.

    Raises:
        UserError: the folder does not exist; fairseq's own error has no message.
    """
    try:
        stock(args)
    except FileNotFoundError as error:
        if error.errno is not None:  # the package's own code has opened a file
            raise
        raise UserError(
            f"--user-dir {args.user_dir}: no such folder; name the folder of your package"
        ) from error


@replaces(sys, "excepthook")
def print_uncaught(stock, kind, error, trace):
    """Print an error that nothing has caught: a user's mistake in one line, with its place."""
    message = _message_of(error) if isinstance(error, Exception) and is_command() else None
    if message is None:
        stock(kind, error, trace)
        return
    imported = getattr(fairseq_utils.import_user_module, "memo", set())
    own = map(Path, imported - set(highrank_plugins.__path__))
    # torch.distributed lets hooks write into a buffer, which is lost when they exit
    _leave("".join(place_in(folder, error) for folder in own) + message, sys.__stderr__)


DIVERGED = (
    ": the training run has diverged; lower --lr, use --clip-norm or a longer "
    "--warmup-updates, and start again from an earlier checkpoint"
)
# start of fairseq's message → what it leaves out
_REMEDIES = {
    "gradients are Nan/Inf": DIVERGED,
    "Size of sample": ", or raise --max-source-positions and --max-target-positions",
    "The dataset is empty": ": raise --max-tokens, --max-source-positions or "
    "--max-target-positions, or give longer data",
}


def _in_one_line(function, *args, **kwargs):
    """Call a function, and print its errors here: hydra lets none reach Python's hook."""
    with ExitStack() as stack:
        stack.push(_leave_with_message)
        result = function(*args, **kwargs)
        if is_command() and sys.stdout is not None:  # None: closed before Python started
            sys.stdout.flush()
        return result


def _leave_with_message(_kind, error, _trace) -> None:
    if not isinstance(error, Exception) or not is_command():
        return
    if isinstance(error, BrokenPipeError) and has_no_reader():
        leave(1)
    if (message := _message_of(error)) is not None:
        _leave(message)


def _message_of(error: BaseException) -> str | None:
    """Return what an error tells a user; None: it may be a defect, and keeps its traceback."""
    text = explained(error)
    for start, remedy in _REMEDIES.items():
        if text.startswith(start):
            return reason_of(error) + remedy
    if isinstance(error, UserError | OSError | FloatingPointError) and "\n" not in text:
        return text.replace("Model file not found", "--path: no such file")
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, AssertionError) and error.args and _is_fairseqs(frames[-1]):
        return text
    # the options of a run that trains have worked
    is_training = any(frame.f_code.co_name == "train_step" for frame in frames)
    wrong = [] if is_training else blamed(error, options_of(sys.argv))
    if not wrong:
        return None
    logger.debug("%s", error, exc_info=error)
    if len(wrong) == 1:
        return f"{wrong[0]}: {reason_of(error)}; correct the option, or leave it out"
    return f"{reason_of(error)}; correct one of the options {', '.join(wrong)}"


def _is_fairseqs(frame: FrameType) -> bool:
    return frame.f_globals["__name__"].partition(".")[0] in ("fairseq", "fairseq_cli")


def is_command() -> bool:
    """Whether this process is one of fairseq's commands, not a program that calls fairseq."""
    program = Path(sys.argv[0])
    return program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"


def _leave(message: str, out: TextIO | None = None) -> None:
    """Print one line and exit."""
    if sys.stdout is not None:
        sys.stdout.flush()
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=out or sys.stderr)
    sys.exit(2)
