"""Engines: small transactional machines that commit what core decides."""
