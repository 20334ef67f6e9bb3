"""Write and submit batch scripts, of a training run or of a study's array, by one template."""

import re
import shlex
import subprocess
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

EARLY = 60  # SLURM may send the signal of --signal this many seconds early


def batch_script(
    writer: str, directives: Iterable[str], prepare: str, command: str, finish: str
) -> str:
    """Return the script of `highrank WRITER`, in lines of bash that a person can change.

    It prepares, runs `SIGNAL COMMAND…`, to which SLURM's warning is passed on as SIGNAL, and
    finishes by the exit code in `code`. `requeue` there queues the job again.
    """
    lines = [f"#SBATCH {directive}" for directive in directives]
    check_characters(lines)
    parts = {"writer": writer, "directives": "\n".join(lines), "prepare": prepare}
    parts |= {"command": command, "finish": finish}
    template = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], template)


def submit(script: Path) -> str:
    """Submit a script by sbatch, and return the number of its job."""
    sent = slurm_program("sbatch", "--parsable", str(script))
    if sent.returncode:
        raise ValueError(f"sbatch {script}: {sent.stderr.strip()}")
    return sent.stdout.strip().partition(";")[0]  # a cluster's name may follow


def slurm_program(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of SLURM, and return what it says."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        line = shlex.join(words)
        raise ValueError(f"{line}: {words[0]} is missing on this machine") from None


def quoted(options: Mapping[str, str | None]) -> list[str]:
    """Return options of sbatch as its directives, None for one without a value.

    sbatch reads quotes as a shell does.
    """
    return [
        f"--{name}" if value is None else f"--{name}={shlex.quote(value)}"
        for name, value in options.items()
    ]


def check_characters(words: Iterable[str]) -> None:
    """Refuse words with characters that could end a line of a script, or that it cannot hold."""
    for word in words:
        for character in word:
            if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
                raise ValueError(f"{word!r}: a batch script cannot have {character!r}: remove it")


_SHORT = {"a": "array", "h": "help", "o": "output", "t": "time", "V": "version"}
_WITHOUT_VALUE = "hHIkOQsvVWX"  # sbatch takes further short options in the same word
_ARRAY = "the script decides whether its job is an array: remove it"
_WRAP = "the script is the job already: remove it"
_ELSEWHERE = "submits nothing: remove it, and give it to sbatch yourself, with the script"
_REFUSED = [  # the start of a name that is enough for sbatch, the name, and why it is refused
    ("a", "array", _ARRAY), ("he", "help", _ELSEWHERE), ("te", "test-only", _ELSEWHERE),
    ("ti", "tim", "write --time"), ("us", "usage", _ELSEWHERE), ("vers", "version", _ELSEWHERE),
    ("wr", "wrap", _WRAP),
]  # fmt: skip


def parsed(option: str) -> tuple[str, str]:
    """Return name and value of one option of sbatch; refuse what a script cannot have."""
    found = re.match(r"--([a-z][a-z-]+)(?=[= ]|$)|-([A-Za-z])", option)
    rest = option[found.end() :] if found else ""
    try:
        more = shlex.split(option)[1:]
    except ValueError:  # a single quote, which is quoted after a sign
        more = [] if found and found[1] and rest.startswith("=") else ["-"]
    if (
        found is None
        or (found[2] and found[2] in _WITHOUT_VALUE and rest)
        or (len(more) > 1 and not rest.startswith("="))
        or any(word.startswith("-") for word in more)
    ):
        raise ValueError("give one option of sbatch by its name, such as --partition=gpu")
    name = found[1] or _SHORT.get(found[2], found[2])
    for start, whole, why in _REFUSED:
        if name.startswith(start) and whole.startswith(name):
            raise ValueError(why)
    return name, rest.lstrip("= ")


def log_pattern(path: object) -> str:
    """Return a path of which SLURM replaces nothing."""
    return str(path).replace("%", "%%")


def check_time_limit(limit: str, grace: int) -> None:
    """Refuse a limit, such as 90 or 1-12:00:00, at which a job could be asked to stop at once.

    SLURM sends its signal `grace` seconds before the limit.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if found is None:  # UNLIMITED, and what only sbatch can judge
        return
    days, *parts = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        parts = [0, *parts]  # minutes, and perhaps seconds
    seconds = ((days * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]
    if seconds <= grace + EARLY:
        raise ValueError(
            f"{limit} is {seconds} s, but SLURM asks the job to stop {grace} to {grace + EARLY} s "
            f"before that; give more than {(grace + EARLY) / 60:g} minutes"
        )
