"""Published runs of MaxText: their settings, their programs, what the reading says of them."""
