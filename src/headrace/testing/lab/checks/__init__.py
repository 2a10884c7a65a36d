"""The checks, by what they are about. Each is a pure function of a history."""
