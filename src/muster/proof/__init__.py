"""Proof of a plan: the real training step, compiled by the real TPU compiler, read and timed.

compile     the child process that compiles (the only module here that imports JAX)
compiler    asks for a compilation, keeps its result, reports how it failed
hlo         the compiled program's text -> computations, operations, loops, collectives
network     how long a collective takes on a torus
kernels     what a Pallas kernel computes and moves
names       an operation in the words of the model
simulate    the walk through a schedule; costs: what it finds
timeline    one step: what computes, what communicates, what waits
trace       the same as a file for Perfetto
"""
