"""Convert names of options between Python and a command line."""


def flag(name: str) -> str:
    """Return `--max-tokens` for `max_tokens`."""
    return f"--{name.replace('_', '-')}"


def option_name(given: str) -> str:
    """Return `max_tokens` for `--max-tokens`."""
    return given.removeprefix("--").replace("-", "_")
