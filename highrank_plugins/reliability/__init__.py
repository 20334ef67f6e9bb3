"""Test whether training runs and checkpoints survive faults on a user's own disk."""
