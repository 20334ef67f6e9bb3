"""Lead from a configuration to checkpoints: commands, launching, averaging, generation."""
