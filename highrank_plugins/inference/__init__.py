"""Run checkpoints over corpora, a piece at a time, and save the progress of long runs."""

import highrank_plugins

highrank_plugins.register()  # fairseq reads and writes checkpoints with our workarounds
