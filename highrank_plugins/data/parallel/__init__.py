"""Handle text in two languages whose lines belong together."""
