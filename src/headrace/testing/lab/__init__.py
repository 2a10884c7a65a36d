"""The lab: faults under load, judged by a checker that knows no engine.

    python -m headrace.testing.lab --engine sqlite --minutes 3 --seed 42

A run has producers and workers in processes of their own (`process`, `producer`, `crew`) that use
the public API only and write down what they saw (`notes`), and a `nemesis` that kills, freezes and
starves them (`faults`, `deployment`). When it has become quiet, the journal and the notes are one
`history`, which the `checker` holds against what Headrace promises.

A run's folder holds all of its evidence: `python -m headrace.testing.lab --check FOLDER` judges it
again.
"""
