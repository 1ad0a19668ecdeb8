"""The command line: one file a command, each short; their bodies are imported lazily."""
