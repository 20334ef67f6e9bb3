"""Turn a question into a table: members, matched controls, schedule, hours and disk."""
