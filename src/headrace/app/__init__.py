"""The public API, and the one place where everything is put together."""
