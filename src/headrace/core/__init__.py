"""Policy, pure: the model, the states, and every decision as data. No I/O, no clock, no chance."""
