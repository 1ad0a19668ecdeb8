"""These programs are run by hand; they need torch, which muster's environment does not have."""

collect_ignore = ["round_trip.py", "reexport.py"]
