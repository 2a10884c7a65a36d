"""The worker: fetch, run, complete, keep leases."""
