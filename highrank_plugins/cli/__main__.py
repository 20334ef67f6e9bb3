"""Run `python -m highrank_plugins.cli` as `highrank`, for where the script is not on PATH."""

from highrank_plugins.cli import main

main()
