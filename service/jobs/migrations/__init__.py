"""The steps that bring a table of evaluations from any earlier version to the present one."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEAD = "0002"  # the newest step in `versions`
VERSIONS = ("0001", HEAD)


def upgrade(connection: "Connection", version: str | None) -> None:
    """Run the steps that are missing, in the transaction that is open.

    Args:
        connection: holds the lock that keeps other processes from doing the same.
        version: that the table has without saying so (files of before there were migrations);
            None when it says so itself, or when there is no table.
    """
    # Only a first start needs it, and it takes longer to import than all else of the table.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    if version is not None:
        command.stamp(config, version)
    command.upgrade(config, HEAD)
