"""Names of options, in Python and on a command line."""


def flag(name: str) -> str:
    """`max_tokens` → `--max-tokens`."""
    return f"--{name.replace('_', '-')}"


def option_name(given: str) -> str:
    """`--max-tokens` → `max_tokens`."""
    return given.removeprefix("--").replace("-", "_")
