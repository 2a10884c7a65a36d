"""Jobs on NATS JetStream."""
