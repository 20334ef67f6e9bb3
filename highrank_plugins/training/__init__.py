"""Turn a configuration into checkpoints: commands, launching, averaging, generation."""
