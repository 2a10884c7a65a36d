"""Chores that any worker may do at any time: rescue, expiry, retention."""
