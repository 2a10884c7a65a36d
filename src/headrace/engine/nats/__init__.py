"""Jobs on NATS JetStream."""

from headrace.engine.nats.engine import NatsEngine

__all__ = ["NatsEngine"]
