"""Proof of a plan: the real training step, compiled by the real TPU compiler, read and timed.

compile     the child process that compiles (the only module here that imports JAX)
child       the process that it runs in: started, waited for, how it ended
compiler    asks for a compilation; kept: results, in a folder that stays below a bound
hlo         the compiled program's text -> computations, operations, loops, collectives
network     how long a collective takes on a torus
kernels     what a Pallas kernel computes and moves
names       an operation in the words of the model
simulate    the walk through a schedule; costs: what it finds
timeline    one step: what computes, what communicates, what waits
trace       the same as a file for Perfetto
reading     what any program tells of itself
expected    what the plan expects to be sent; memory: what it expects to be held
findings    what costs time or memory for nothing, and what to change
verdict     all of it beside the plan; others: the next best layouts where it is no
"""
