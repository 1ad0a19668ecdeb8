"""The planner: from a model, a cluster and a batch to a `Plan` and the reasons for it."""
