"""A copy of the stream in SQLite, in which jobs can be listed, counted and searched.

It is disposable: deleted, damaged or behind, it is built anew from the stream, and no job's way
depends on it. `mirror` is what the engine uses; `following` reads the stream, `applying` makes
rows of messages, `finding` serves filters, `database` sees to the file.
"""

from headrace.engine.nats.projection.database import Damaged
from headrace.engine.nats.projection.mirror import Gone, OldEntries, Projection

__all__ = ["Damaged", "Gone", "OldEntries", "Projection"]
