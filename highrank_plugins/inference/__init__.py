"""Run checkpoints over corpora, a piece at a time, and keep the progress of long runs."""

import highrank_plugins

highrank_plugins.register()  # checkpoints are read and written by fairseq with our workarounds
