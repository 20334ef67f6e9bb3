"""Test whether trainings and checkpoints survive faults on a user's own disk."""
