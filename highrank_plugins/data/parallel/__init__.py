"""Text in two languages whose lines belong together."""
