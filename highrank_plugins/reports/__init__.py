"""Write pages about a model: its card, plots, and folders to publish."""
