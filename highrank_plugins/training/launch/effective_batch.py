"""Choose how many batches each process adds up, so that updates are equal on any number."""

from collections.abc import Sequence

from highrank_plugins.training.launch.flags import option, with_option

TOLERANCE = 0.1


def fit(effective_tokens: int, max_tokens: int, world_size: int) -> tuple[int, int]:
    """Return --max-tokens and --update-freq; their product with `world_size` is as required.

    The first is `max_tokens`, or less where no multiple of that is within `TOLERANCE`: on many
    processes, a batch of each may be more than an update's share.

    Raises:
        ValueError: there are more processes than tokens.
    """
    each = world_size * max_tokens
    freq = max(1, round(effective_tokens / each))
    if abs(freq * each - effective_tokens) <= TOLERANCE * effective_tokens:
        return max_tokens, freq
    freq = -(-effective_tokens // each)  # rounded up: a smaller batch fits into memory
    lowered = effective_tokens // (freq * world_size)
    if not lowered:
        raise ValueError(
            f"--effective-tokens {effective_tokens}: {world_size} processes cannot have a token "
            "each; use fewer processes"
        )
    return lowered, freq


def with_effective_batch(
    command: Sequence[str], effective_tokens: int, world_size: int
) -> tuple[list[str], str]:
    """Return the command with what `fit` finds, and a line that says what it amounts to.

    Raises:
        ValueError: it has --update-freq, or lacks --max-tokens; see also `fit`.
    """
    given = option(command, "--max-tokens")
    if given is None or not given.isdecimal() or int(given) == 0:
        raise ValueError("--effective-tokens needs --max-tokens N of fairseq-train")
    if option(command, "--update-freq") is not None:
        raise ValueError("--effective-tokens sets --update-freq: remove one of the two")
    max_tokens, freq = fit(effective_tokens, int(given), world_size)
    lowered = "" if max_tokens == int(given) else f" (lowered from {given})"
    processes = "1 process" if world_size == 1 else f"{world_size} processes"
    line = (
        f"--update-freq {freq}: {processes} × --max-tokens {max_tokens}{lowered} × "
        f"{freq} = {world_size * max_tokens * freq} tokens per update at most "
        f"({effective_tokens} wanted)"
    )
    words = with_option(command, "--max-tokens", str(max_tokens))
    return [*words, "--update-freq", str(freq)], line
