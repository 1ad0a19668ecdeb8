"""Proof of a plan: the real training step, compiled by the real TPU compiler, read and timed.

compile     the child process that compiles (the only module here that imports JAX)
compiler    asks for a compilation, keeps its result, reports how it failed
hlo         the compiled program's text -> computations, operations, loops, collectives
timeline    the schedule of one step: what computes, what communicates, what waits
"""
