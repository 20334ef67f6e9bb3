"""Try on a user's own disk what the promises for trainings and checkpoints are worth there."""
