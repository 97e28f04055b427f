"""Owners, priorities and the time that evaluations ran; the same on SQLite and PostgreSQL."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")
_KEPT = (
    *("seq", "id", "status", "spec", "models", "samples", "cost", "fingerprint"),
    *("idempotency_key", "created", "started", "finished", "done", "total", "stage", "eta"),
    *("best", "heartbeat", "attempts", "starts", "result", "error", "deleted"),
)


def upgrade() -> None:
    """Copy every row to a table with the new columns, because SQLite cannot drop a constraint."""
    table = _create()
    connection = op.get_bind()
    columns = ", ".join((*_KEPT, "owner", "cancel_requested"))
    for row in connection.execute(sa.text(f"SELECT {columns} FROM jobs ORDER BY seq")).mappings():
        connection.execute(table.insert().values(_converted(row)))
    op.drop_table("jobs")
    op.create_index("evaluations_by_status", "evaluations", ["status", "priority", "seq"])
    op.create_index("evaluations_by_owner", "evaluations", ["owner", "created"])
    if connection.dialect.name == "sqlite":
        # What the service of before the migrations reads, and refuses.
        connection.exec_driver_sql("PRAGMA user_version = 2")


def downgrade() -> None:
    """Refused: owners would be lost, and with them who may see what."""
    raise NotImplementedError("the table cannot go back to before there were owners")


def _converted(row: Any) -> dict[str, Any]:
    """The row of before: its `owner` was the worker, and everybody owned every evaluation."""
    values = {name: row[name] for name in _KEPT}
    models = json.loads(row["models"])
    return values | {
        "owner": "",
        "priority": 0,
        "model": models[0]["name"] if models else "",
        "worker": row["owner"],
        "cancel_requested": bool(row["cancel_requested"]),
    }


def _create() -> sa.Table:
    statuses = ", ".join(f"'{status}'" for status in _STATUSES)
    return op.create_table(
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


def _counter(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default="0")
