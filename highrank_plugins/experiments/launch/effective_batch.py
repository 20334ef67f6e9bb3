"""How many batches each process adds up, so that an update sees as much on any number of them."""

from collections.abc import Sequence

from highrank_plugins.experiments.launch.flags import option

TOLERANCE = 0.1


def update_freq(effective_tokens: int, max_tokens: int, world_size: int) -> int:
    """The --update-freq whose product with world_size and max_tokens is nearest to what is wanted.

    Raises:
        ValueError: the nearest is more than `TOLERANCE` off; names a --max-tokens that fits.
    """
    each = world_size * max_tokens
    freq = max(1, round(effective_tokens / each))
    if abs(freq * each - effective_tokens) > TOLERANCE * effective_tokens:
        # rounded up: a smaller batch fits into memory
        needed = -(-effective_tokens // each)
        fits = effective_tokens // (needed * world_size)
        advice = f"--max-tokens {fits} gives it" if fits else "use fewer processes"
        raise ValueError(
            f"--effective-tokens {effective_tokens}: {world_size} processes × --max-tokens "
            f"{max_tokens} are {each}, of which no multiple is within {TOLERANCE:.0%}; {advice}"
        )
    return freq


def with_update_freq(
    command: Sequence[str], effective_tokens: int, world_size: int
) -> tuple[list[str], str]:
    """The command with --update-freq, and a line that says what it amounts to.

    Raises:
        ValueError: it has that option, or lacks --max-tokens; see also `update_freq`.
    """
    max_tokens = option(command, "--max-tokens")
    if max_tokens is None or not max_tokens.isdecimal() or int(max_tokens) == 0:
        raise ValueError("--effective-tokens needs --max-tokens N of fairseq-train")
    if option(command, "--update-freq") is not None:
        raise ValueError("--effective-tokens sets --update-freq: remove one of the two")
    freq = update_freq(effective_tokens, int(max_tokens), world_size)
    total = world_size * int(max_tokens) * freq
    line = (
        f"--update-freq {freq}: {world_size} processes × --max-tokens {max_tokens} × {freq} = "
        f"{total} tokens per update at most ({effective_tokens} wanted)"
    )
    return [*command, "--update-freq", str(freq)], line
