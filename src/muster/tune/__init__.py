"""The compiler in the loop: it judges the planner's best candidates and what no formula sees.

- `layouts`, `choices`, `flags`: what can be varied
- `trial`: one question to the compiler, and the reading of its program
- `jobs`: several compilations at once, as cores, memory and the budget allow
- `search`: the rungs
- `outcome`: the winner, and why
"""
