"""Turn conversations into contexts and responses."""
