"""Write what batch scripts share: options of sbatch, signals, and how a job is queued again."""

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping

# SLURM may send the signal of --signal this many seconds early
EARLY = 60
# functions of bash
FUNCTIONS = """\
# not empty once SLURM or its user has asked this shell to stop; an array's task needs it
# shellcheck disable=SC2034
asked=
trap 'asked=1' TERM USR1

# run SIGNAL COMMAND...: the command, to which SIGUSR1 is passed on as SIGNAL
run() {
    local process code
    "${@:2}" &
    process=$!
    trap 'asked=1; kill -s "$1" "$process" 2>/dev/null' USR1
    while :; do
        wait "$process" # until its end or a signal
        code=$?
        kill -0 "$process" 2>/dev/null || break
    done
    trap 'asked=1' USR1
    return "$code"
}

# queue a job again that was asked to stop, and has saved
requeue() {
    local job=$SLURM_JOB_ID
    # the last task of an array has the number of the whole array
    if [[ -n ${SLURM_ARRAY_TASK_ID-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
    # SLURM shows a job that it ends as COMPLETING: one that was cancelled must not start again, and
    # one that was preempted is queued again already
    if [[ ! $(scontrol show job "$job") =~ JobState=RUNNING|Reason=TimeLimit ]]; then
        echo "stopped, and SLURM ends the job; if you cancelled it, submit it to resume"
    elif scontrol requeue "$job"; then
        echo "stopped, and the job is queued again; it resumes from its last checkpoint"
    else
        echo "stopped, but SLURM does not queue the job again; submit it to resume"
    fi
}
"""


def directives(options: Mapping[str, str | None], others: Iterable[str] = ()) -> str:
    """Return the lines that give sbatch its options; it reads quotes as a shell does.

    Args:
        options: name → value, None for an option without one.
        others: such as `--partition=gpu`; a value with blanks needs no quotes.
    """
    lines = [
        f"--{name}" if value is None else f"--{name}={shlex.quote(value)}"
        for name, value in options.items()
    ]
    for option in others:
        name, equals, value = option.partition("=")
        lines.append(name + equals + (value if _is_one_word(value) else shlex.quote(value)))
    check_characters(lines)
    return "\n".join(f"#SBATCH {line}" for line in lines)


def check_characters(words: Iterable[str]) -> None:
    """Refuse words with characters that could end a line of a script, or that it cannot hold."""
    for word in words:
        for character in word:
            if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
                raise ValueError(f"{word!r}: a batch script cannot have {character!r}: remove it")


def _is_one_word(value: str) -> bool:
    """Whether a shell takes the value for one word, or none, as it is."""
    try:
        return len(shlex.split(value)) <= 1
    except ValueError:  # a single quote
        return False


_SHORT = {"a": "array", "h": "help", "o": "output", "t": "time", "V": "version"}
_WITHOUT_VALUE = "hHIkOQsvVWX"  # sbatch takes further short options in the same word
_ALONE = {  # the start of a name that is enough for sbatch → the name
    "a": "array", "he": "help", "te": "test-only", "us": "usage", "vers": "version", "wr": "wrap",
}  # fmt: skip


def long_name(option: str) -> str:
    """Return the name of an option of sbatch, without dashes; empty unless it is exactly one."""
    found = re.match(r"--([a-z][a-z-]+)(?=[= ]|$)|-([A-Za-z])", option)
    if found is None or (found[2] and found[2] in _WITHOUT_VALUE and option[2:]):
        return ""
    has_sign = option[found.end() :].startswith("=")
    try:
        more = shlex.split(option)[1:]
    except ValueError:  # a single quote, which `directives` quotes after a sign
        return found[1] if found[1] and has_sign else ""
    if any(word.startswith("-") for word in more) or (len(more) > 1 and not has_sign):
        return ""
    return found[1] or _SHORT.get(found[2], found[2])


def objection(option: str) -> str | None:
    """Return why a script cannot have an option of sbatch, None if it can."""
    name = long_name(option)
    if not name:
        return "give one option of sbatch by its name, such as --partition=gpu"
    for start, whole in _ALONE.items():
        if name.startswith(start) and whole.startswith(name):
            return {
                "array": "the script decides whether its job is an array: remove it",
                "wrap": "the script is the job already: remove it",
            }.get(
                whole, "submits nothing: remove it, and give it to sbatch yourself, with the script"
            )
    if name in ("ti", "tim"):
        return "write --time"
    return None


def log_pattern(path: object) -> str:
    """Return a path of which SLURM replaces nothing."""
    return str(path).replace("%", "%%")


def check_time_limit(limit: str, grace: int) -> None:
    """Refuse a time limit at which a job could be asked to stop as soon as it starts.

    Args:
        limit: as sbatch takes it, such as `90` (minutes) or `1-12:00:00`.
        grace: seconds before the limit at which SLURM sends its signal.
    """
    seconds = _seconds(limit)
    if seconds is not None and seconds <= grace + EARLY:
        raise ValueError(
            f"{limit} is {seconds} s, but SLURM asks the job to stop {grace} to {grace + EARLY} s "
            f"before that; give more than {(grace + EARLY) / 60:g} minutes"
        )


def _seconds(limit: str) -> int | None:
    """Return a time of SLURM in seconds, None for UNLIMITED and what only sbatch can judge."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if found is None:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    first, second, third = parts
    if days is not None or third is not None:
        hours, minutes, seconds = first, second, third
    else:
        hours, minutes, seconds = 0, first, second
    return (((days or 0) * 24 + (hours or 0)) * 60 + (minutes or 0)) * 60 + (seconds or 0)
