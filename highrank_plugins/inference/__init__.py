"""Runs checkpoints over corpora, a piece at a time, and keeps what a long run has reached."""

import highrank_plugins

highrank_plugins.register()  # checkpoints are read and written by fairseq with our workarounds
