"""What operators do with NATS itself: run a server of one's own, and let services in."""

from __future__ import annotations

from headrace.engine.nats.permissions import Permissions, Role, permissions
from headrace.engine.nats.server import EmbeddedServer

__all__ = ["EmbeddedServer", "Permissions", "Role", "permissions"]
