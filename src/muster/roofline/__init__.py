"""The scaling book's formulas as pure functions: FLOPs, memory, communication, time."""
