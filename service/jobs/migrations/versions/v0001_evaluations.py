"""The table of evaluations; the same on SQLite and PostgreSQL."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")


def upgrade() -> None:
    """Create the table and its indices."""
    statuses = ", ".join(f"'{status}'" for status in _STATUSES)
    op.create_table(
        "evaluations",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("status", sa.Text, sa.CheckConstraint(f"status IN ({statuses})"), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("spec", "model", "models")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("samples", "cost")),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("created", sa.Double, nullable=False),
        *(sa.Column(name, sa.Double) for name in ("started", "finished", "eta", "deleted")),
        *(_counter(name, sa.BigInteger()) for name in ("done", "total", "best")),
        sa.Column("stage", sa.Text, nullable=False, server_default=""),
        sa.Column("worker", sa.Text),
        sa.Column("heartbeat", sa.Double),
        _counter("ran", sa.Double()),
        *(_counter(name, sa.Integer()) for name in ("attempts", "starts", "lost")),
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        *(sa.Column(name, sa.Text) for name in ("result", "error", "traceparent")),
        sa.UniqueConstraint("owner", "idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("evaluations_by_status", "evaluations", ["status", "priority", "seq"])
    op.create_index("evaluations_by_owner", "evaluations", ["owner", "created"])


def _counter(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default="0")
