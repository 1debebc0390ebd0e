"""What the objects of a run show by themselves: flags, hooks, data sets, calls in every step."""
