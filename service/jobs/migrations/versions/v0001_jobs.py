"""The table of one SQLite file per host, as it was before there were migrations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "jobs",
        sa.Column("seq", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("id", "status", "spec", "models")),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("created", sa.Double, nullable=False),
        *(sa.Column(name, sa.Double) for name in ("started", "finished", "eta", "deleted")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("done", "total", "best")),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("heartbeat", sa.Double),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("attempts", "starts")),
        sa.Column("cancel_requested", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("result", "error")),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("jobs")
