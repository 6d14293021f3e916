"""The cost of a limiter's decision, ours beside other libraries', on one server in one run."""
