"""Who shares the queue and the disk with others, when one had a turn, and what is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns, and the indices that turns, budgets and sums of bytes are read from."""
    op.add_column("evaluations", sa.Column("sharer", sa.Text, nullable=False, server_default=""))
    op.add_column("evaluations", sa.Column("claimed", sa.Double))
    op.add_column(
        "evaluations", sa.Column("stored", sa.BigInteger, nullable=False, server_default="0")
    )
    op.execute("UPDATE evaluations SET sharer = owner, claimed = started")
    op.create_index("evaluations_by_turn", "evaluations", ["sharer", "priority", "claimed"])
    kept = sa.text("stored > 0")
    op.create_index(
        "evaluations_kept",
        "evaluations",
        ["sharer", "stored"],
        sqlite_where=kept,
        postgresql_where=kept,
    )
    op.drop_index("evaluations_by_owner", "evaluations")
    op.create_index("evaluations_by_owner", "evaluations", ["owner", "created", "cost"])
