"""A user's mistake ends in a traceback, where one line and exit code 2 would do.

What breaks: `--head mos --head-components 0` ends with a traceback of 20 functions. Its last line
says what to change, and few people read that far.
Why: fairseq prints every error so, and leaves with exit code 1. hydra prints errors itself.
What we do: in fairseq's commands, Python's hook for errors prints the message alone, as `argparse`
does for an unknown option. This concerns a `UserError`, an error of files and disks (`OSError`) or
of numbers (`FloatingPointError`), and what fairseq says about options. It also concerns an error
that options on the command line have led to (`common/blame.py`), with its traceback if
LOGLEVEL=DEBUG. Other errors, and those of an update of the weights, keep the traceback: they may be
defects. A program that calls fairseq's functions gets the exception.
Delete when: fairseq ends so for a `ValueError` of a plug-in.
"""

import logging
import os
import re
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path

from fairseq import options
from fairseq import utils as fairseq_utils
from fairseq.distributed import utils
from fairseq_cli import generate, preprocess
from omegaconf import DictConfig, OmegaConf

import highrank_plugins.hooks.scored_samples  # its errors must pass through ours
from highrank_plugins.common.blame import blamed, options_of, reason_of
from highrank_plugins.common.names import flag
from highrank_plugins.common.option_ranges import check_ranges
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError, explained, has_no_reader, leave, place_in

logger = logging.getLogger(__name__)
os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # lets errors reach Python's hook


@replaces(options, "parse_args_and_arch")
def parse_args_and_arch(stock, *args, **kwargs):
    """Return the parsed options."""
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
    for name, package in _PACKAGES.items():
        if getattr(given, name, False) and find_spec(package) is None:
            raise UserError(f"{flag(name)} needs {package}, which is not installed; leave it out")
    check_ranges(vars(given))
    return parsed


@replaces(utils, "call_main")
def call_main(stock, cfg, *args, **kwargs):
    """Run a command; fairseq-hydra-train has not read its options by `parse_args_and_arch`."""
    if isinstance(cfg, DictConfig):
        for group in OmegaConf.to_container(cfg).values():
            if isinstance(group, dict):
                check_ranges(group)
    return flushed(stock, cfg, *args, **kwargs)


def flushed(stock, *args, **kwargs):
    """Run a command, and write its output while an error of it can still be reported."""
    result = stock(*args, **kwargs)
    if is_command() and sys.stdout is not None:  # None: closed before Python started
        sys.stdout.flush()
    return result


for _command in (generate, preprocess):  # which do not use `call_main`
    replaces(_command, "main")(flushed)


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
    "The dataset is empty": ": raise --max-tokens, --max-source-positions or "
    "--max-target-positions, or give longer data",
}


@replaces(sys, "excepthook")
def print_uncaught(stock, kind, error, trace):
    """Print an error that nothing has caught: a user's mistake in one line, with its place."""
    if not isinstance(error, Exception) or not is_command():
        stock(kind, error, trace)
        return
    if isinstance(error, BrokenPipeError) and has_no_reader():
        leave(1)
    message = _message_of(error)
    if message is None:
        stock(kind, error, trace)
        return
    imported = getattr(fairseq_utils.import_user_module, "memo", set())
    own = map(Path, imported - set(highrank_plugins.__path__))
    place = "".join(place_in(folder, error) for folder in own)
    if sys.stdout is not None:
        sys.stdout.flush()
    # torch.distributed lets hooks write into a buffer, which is lost when they exit
    print(f"{Path(sys.argv[0]).name}: error: {place}{message}", file=sys.__stderr__)
    sys.exit(2)


def _message_of(error: Exception) -> str | None:
    """Return what an error tells a user; None: it may be a defect, and keeps its traceback."""
    text = explained(error)
    for start, remedy in _REMEDIES.items():
        if text.startswith(start):
            return reason_of(error) + remedy
    if package := _missing_package(error):
        return f"{package} is not installed: install it, or leave out the option that needs it"
    one_line = isinstance(error, OSError | FloatingPointError) and "\n" not in text
    of_worker = "Traceback (most recent call last)" in text  # of a process that loads data
    if one_line or (isinstance(error, UserError) and not of_worker):
        return text.replace("Model file not found", "--path: no such file")
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    place = frames[-1].f_globals["__name__"] if frames else ""
    is_fairseqs = place.startswith(("fairseq.", "fairseq_cli."))
    if is_fairseqs and ((isinstance(error, AssertionError) and text) or re.search(r"\s--\w", text)):
        return reason_of(error)
    # the options of a run that trains have worked
    is_training = any(frame.f_code.co_name == "train_step" for frame in frames)
    wrong = [] if is_training else blamed(error, options_of(sys.argv))
    if not wrong:
        return None
    logger.debug("%s", error, exc_info=error)
    if len(wrong) == 1:
        return f"{wrong[0]}: {reason_of(error)}; correct the option, or leave it out"
    return f"{reason_of(error)}; correct one of the options {', '.join(wrong)}"


def _missing_package(error: Exception) -> str | None:
    """Return the Python package, or data of NLTK, that a part of fairseq looks for."""
    if isinstance(error, ModuleNotFoundError):
        is_ours = (error.name or "highrank_plugins").startswith(("highrank_plugins", "fairseq"))
        return None if is_ours else f"the Python package {error.name}"
    if isinstance(error, ImportError) and (found := re.match(r"Please install (\S+)", str(error))):
        return f"the Python package {found[1]}"
    if isinstance(error, LookupError) and (
        found := re.search(r"nltk\.download\('(\S+)'", str(error))
    ):
        return f"NLTK's {found[1]} (python -m nltk.downloader {found[1]})"
    return None


def is_command() -> bool:
    """Whether this process is one of fairseq's commands, not a program that calls fairseq."""
    program = Path(sys.argv[0])
    return program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"
