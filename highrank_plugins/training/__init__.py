"""From a configuration to checkpoints: command lines, launching, averaging, generation."""
